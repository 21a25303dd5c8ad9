"""Input of hooks: which hooks an occasion has, and what they are told, without I/O.

Hooks written for Claude Code work unchanged. Its names of tools are matched whole, as it does; ours are
searched, as Crush does. A hook in the nested form, or one whose matcher fits only the other name, is also
told the name of the tool in that spelling.
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import orjson
from attrs import field, frozen

from crush_trio.config.checks import EVERYTHING, HookEvent, Hooks, hooks_for
from crush_trio.tools.base import ReportProcesses, ToolCall, ToolResult
from crush_trio.wire.config import HookConfig
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import SessionId

MAX_VARIABLE_BYTES: Final = 100_000
"""Maximum bytes of a variable. Linux limits one string of the environment to 128 KiB."""

_SPELLINGS: Final = {
    "agent": "Task",
    "bash": "Bash",
    "edit": "Edit",
    "fetch": "WebFetch",
    "glob": "Glob",
    "grep": "Grep",
    "job_kill": "KillShell",
    "job_output": "BashOutput",
    "ls": "LS",
    "multiedit": "MultiEdit",
    "question": "AskUserQuestion",
    "todos": "TodoWrite",
    "view": "Read",
    "write": "Write",
}


def claude_name(tool: str, servers: Collection[str] = ()) -> str:
    """Return the name of a tool in the spelling of Claude Code; *servers* are the MCP servers."""
    for server in sorted(servers, key=len, reverse=True):
        if tool.startswith(f"mcp_{server}_"):
            return f"mcp__{server}__{tool.removeprefix(f'mcp_{server}_')}"
    return _SPELLINGS.get(tool, tool)


@frozen(kw_only=True)
class Subject:
    """What the matcher of a hook is compared with: a tool, by both names, or a word; often nothing."""

    ours: str = ""
    theirs: str = ""

    def matches(self, hook: HookConfig) -> bool:
        """Whether *hook* is for this subject."""
        return not self.ours or hook.matcher in EVERYTHING or self._fits(hook.matcher)

    def _fits(self, matcher: str) -> bool:
        found = re.search(matcher, self.ours) or re.fullmatch(matcher, self.theirs)
        return found is not None

    def told(self, hook: HookConfig) -> str:
        """Return the name that *hook* is told."""
        if hook.type:  # it was in the nested form, so it was written for Claude Code
            return self.theirs
        ours = hook.matcher in EVERYTHING or re.search(hook.matcher, self.ours)
        return self.ours if ours else self.theirs


def matching_hooks(
    hooks: Hooks, subject: Subject, event: HookEvent = HookEvent.PRE_TOOL_USE
) -> tuple[HookConfig, ...]:
    """Return the hooks for an occasion; of several with the same command only the first."""
    found: dict[str, HookConfig] = {}
    for hook in hooks_for(hooks, event):
        if subject.matches(hook):
            found.setdefault(hook.command, hook)
    return tuple(found.values())


@frozen(kw_only=True)
class Occasion:
    """What happens, as hooks are told: an event of a session, with its details."""

    event: HookEvent
    session_id: SessionId
    details: JsonObject = field(factory=dict, repr=False)
    variables: Mapping[str, object] = field(factory=dict, repr=False)
    reaped: ReportProcesses = field(default=lambda stopped, left=(): None, repr=False)


def tool_occasion(call: ToolCall, result: ToolResult | None = None) -> Occasion:
    """Return the occasion of a call that is about to be made, or that has returned *result*."""
    arguments = orjson.loads(call.input)
    details = {"tool_name": call.name, "tool_input": arguments, "tool_use_id": call.id}
    event = HookEvent.PRE_TOOL_USE
    if result is not None:
        event = HookEvent.POST_TOOL_USE
        details["tool_response"] = {"content": result.content, "is_error": result.is_error}
    return Occasion(
        event=event,
        session_id=call.session_id,
        details=details,
        variables={
            "TOOL_NAME": call.name,
            "TOOL_INPUT_COMMAND": arguments.get("command"),
            "TOOL_INPUT_FILE_PATH": arguments.get("file_path"),
        },
        reaped=call.reaped,
    )


@frozen(kw_only=True)
class HookInput:
    """An occasion as hooks get it: `payload` on standard input, `variables` in the environment."""

    payload: Callable[[HookConfig], bytes] = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)

    @property
    def invalid_variable(self) -> str:
        """The name of a variable that cannot be passed to a program; empty if all can."""
        invalid = (name for name, value in self.variables.items() if not _is_valid(value))
        return next(invalid, "")


def hook_input(occasion: Occasion, subject: Subject, directory: Path, root: Path) -> HookInput:
    """Return the hook input, in a workspace at *directory* of the project at *root*."""
    event = occasion.event.value
    common = {
        "event": event,
        "hook_event_name": event,
        "session_id": occasion.session_id,
        "cwd": str(directory),
        **occasion.details,
    }

    def payload(hook: HookConfig) -> bytes:
        named = {"tool_name": subject.told(hook)} if "tool_name" in common else {}
        return orjson.dumps({**common, **named}, option=orjson.OPT_APPEND_NEWLINE)

    variables = {
        "EVENT": event,
        "SESSION_ID": occasion.session_id,
        "CWD": str(directory),
        "PROJECT_DIR": str(root),
        **occasion.variables,
    }
    named = {f"CRUSH_{name}": text for name, text in variables.items() if isinstance(text, str)}
    return HookInput(payload=payload, variables={**named, "CLAUDE_PROJECT_DIR": str(root)})


def _is_valid(value: str) -> bool:
    return "\0" not in value and len(value.encode()) <= MAX_VARIABLE_BYTES
