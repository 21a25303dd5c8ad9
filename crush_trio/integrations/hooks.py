"""`ConfiguredHooks`: runs the user's commands that decide about tool calls and prompts (I9, I10, I11).

All hooks of a call run concurrently, each in its own process, as tasks inside the call. The call
continues only when all of them and everything they started have ended: by themselves, by their time
limit, or by a cancel of the run. Each has its own time limit, so a slow hook does not cost another its
answer. A hook that ignores SIGTERM is killed a second later.

The hooks are read from the configuration for each call. Hooks of a project that the user does not trust
are removed when the configuration is loaded (`config/trust/wishes.py`).
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Final

import trio
from attrs import define, evolve, field

from crush_trio.clock import Clock
from crush_trio.config.checks import HookEvent
from crush_trio.config.live import Configuration
from crush_trio.config.redaction import redact_text
from crush_trio.integrations.hook_answers import (
    DENY_EXIT_CODE,
    HALT_EXIT_CODE,
    NO_OPINION,
    HookAnswer,
    HookVerdict,
    combine_answers,
    hook_name,
    invalid_variable_answer,
    read_answer,
)
from crush_trio.integrations.hook_input import (
    HookInput,
    Occasion,
    Subject,
    claude_name,
    hook_input,
    matching_hooks,
    tool_occasion,
)
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.base import ToolCall, ToolResult
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.tools.shell.environment import shell_argv, unattended_env
from crush_trio.tools.shell.jobs import OpenCommand, RunningCommand
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, CommandEnd, open_process_group
from crush_trio.wire.config import HookConfig

log = logging.getLogger(__name__)

TIMEOUT: Final = 30.0
"""Default time limit of a hook in seconds."""

GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""

MAX_OUTPUT_BYTES: Final = 1024 * 1024
"""Maximum bytes kept of each output stream."""

MAX_LOGGED_COLUMNS: Final = 500
"""Maximum columns of standard error that are logged."""


@define(eq=False, kw_only=True)
class ConfiguredHooks:
    """The hooks of one workspace, as currently configured."""

    live: Configuration = field(repr=False)
    directory: Path
    clock: Clock = field(repr=False)
    opens: OpenCommand = field(default=open_process_group, repr=False)
    sandbox: CommandSandbox = field(factory=CommandSandbox, repr=False)

    def matching(
        self, subject: str, event: HookEvent = HookEvent.PRE_TOOL_USE
    ) -> tuple[HookConfig, ...]:
        """Return the hooks of an event, for a tool or another *subject*; usually none."""
        hooks = self.live.current.config.hooks
        return matching_hooks(hooks, self._subject(subject), event) if hooks else ()

    def _subject(self, name: str) -> Subject:
        return Subject(ours=name, theirs=claude_name(name, self.live.current.config.mcp))

    async def ask(
        self, hooks: tuple[HookConfig, ...], call: ToolCall, result: ToolResult | None = None
    ) -> HookVerdict:
        """Run *hooks* for *call*, or for its *result*, and return their combined verdict."""
        return await self.ask_about(hooks, tool_occasion(call, result), call.name)

    async def ask_about(
        self, hooks: tuple[HookConfig, ...], occasion: Occasion, subject: str = ""
    ) -> HookVerdict:
        """Run *hooks* for *occasion* concurrently, and return their combined verdict."""
        config = self.live.current
        asked = hook_input(occasion, self._subject(subject), self.directory, config.project.root)
        await trio.lowlevel.checkpoint()
        if asked.invalid_variable:
            return combine_answers(
                hooks, [invalid_variable_answer(asked.invalid_variable)] * len(hooks)
            )
        env = {**unattended_env(config.environment), **asked.variables}
        answers = [NO_OPINION] * len(hooks)

        async def ask_one(index: int, hook: HookConfig) -> None:
            answers[index] = await self._ask(hook, env, asked, occasion)

        async with open_hidden_nursery() as nursery:
            for index, hook in enumerate(hooks):
                nursery.start_soon(ask_one, index, hook, name=f"hook {hook_name(hook)}")
        return evolve(combine_answers(hooks, answers), directory=self.directory)

    async def _ask(
        self, hook: HookConfig, env: Mapping[str, str], asked: HookInput, occasion: Occasion
    ) -> HookAnswer:
        """Run one hook and return its answer; no opinion if it cannot run or does not end."""
        stdout, stderr = BoundedOutput(MAX_OUTPUT_BYTES), BoundedOutput(MAX_OUTPUT_BYTES)
        ended: CommandEnd | None = None

        def note(how: CommandEnd) -> None:
            nonlocal ended
            ended = how

        await trio.lowlevel.checkpoint()
        deadline = trio.move_on_after(hook.timeout if hook.timeout > 0 else TIMEOUT)
        try:
            command = Command(argv=shell_argv(hook.command), working_dir=self.directory, env=env)
            if hook.sandbox:
                command = await self.sandbox.held(command)
            with deadline:
                async with self.opens(
                    command,
                    clock=self.clock,
                    stdin=PIPE,
                    stdout=stdout,
                    stderr=stderr,
                    grace=GRACE,
                    on_ended=note,
                ) as group:
                    await _send_input(group, asked.payload(hook))
                    await group.wait()
        except (OSError, ValueError) as error:
            log.warning("hook.not_run", extra={"hook": hook_name(hook), "error": str(error)})
            return NO_OPINION
        finally:
            if ended is not None:
                cancelled = ended.stopped and not deadline.cancelled_caught
                occasion.reaped(ended.reaped if cancelled else (), ended.left)
        return _answer_of(hook, occasion.event, ended, stdout, stderr)


async def _send_input(hook: RunningCommand, payload: bytes) -> None:
    """Write the input to a hook. A hook that does not read it may still answer.

    This waits at most until the hook ends: only its own processes have the other end of the pipe.
    """
    await trio.lowlevel.checkpoint()
    if hook.stdin is None:
        return
    try:
        async with hook.stdin as stdin:
            await stdin.send_all(payload)
    except trio.BrokenResourceError:
        pass


def _answer_of(
    hook: HookConfig,
    event: HookEvent,
    ended: CommandEnd | None,
    stdout: BoundedOutput,
    stderr: BoundedOutput,
) -> HookAnswer:
    if ended is None or ended.stopped:
        log.warning("hook.too_slow", extra={"hook": hook_name(hook)})
        return NO_OPINION
    if ended.exit_code not in {0, DENY_EXIT_CODE, HALT_EXIT_CODE}:
        said = redact_text(stderr.text(MAX_LOGGED_COLUMNS))
        extra = {"hook": hook_name(hook), "exit_code": ended.status, "stderr": said}
        log.warning("hook.failed", extra=extra)
    return read_answer(ended.exit_code, stdout.text(), stderr.text(), event)
