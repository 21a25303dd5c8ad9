"""What hooks are asked and what they answer: matched, read and put together, without waiting.

A hook answers by its exit code and by what it writes (I10). What cannot be understood is no opinion: a
broken hook is no reason to stop somebody's work. One that says no is always heard, whatever else is
wrong with its answer, and a call of which the hooks could be told only a part counts as refused:
otherwise a model had only to make a command long enough.

Several answers become one, in the order of the configuration (I9). Who answered first does not matter.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import orjson
from attrs import evolve, field, frozen

from crush_trio.config.checks import PRE_TOOL_USE, Hooks, hooks_before_tools
from crush_trio.config.redaction import redact_text
from crush_trio.tools.base import ToolCall, ToolResult
from crush_trio.tools.shell.jobs import clipped
from crush_trio.wire.config import HookConfig
from crush_trio.wire.fields import Json, JsonObject

DENY_EXIT_CODE: Final = 2
"""The exit code by which a hook says no to one call."""

HALT_EXIT_CODE: Final = 49
"""The exit code by which it also ends the turn."""

MAX_VARIABLE_BYTES: Final = 100_000
"""Bytes that a variable may have. Linux starts no program with one much longer."""

METADATA: Final = "hook"
"""Where viewers find in a result what the hooks said."""


def matching_hooks(hooks: Hooks, tool_name: str) -> tuple[HookConfig, ...]:
    """Return the hooks to ask about a tool; of those with the same command only the first."""
    found: dict[str, HookConfig] = {}
    for hook in hooks_before_tools(hooks):
        if re.search(hook.matcher, tool_name):
            found.setdefault(hook.command, hook)
    return tuple(found.values())


def hook_name(hook: HookConfig) -> str:
    """Return what to call a hook where people read it."""
    return hook.name or redact_text(hook.command)


# ── What is asked ───────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class HookInput:
    """One call, as hooks are told of it: `payload` to be read, `variables` to be looked at."""

    payload: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)

    @property
    def invalid_variable(self) -> str:
        """The variable that no program could be started with, if there is one."""
        invalid = (name for name, value in self.variables.items() if not _is_valid(value))
        return next(invalid, "")


def hook_input(call: ToolCall, directory: Path, root: Path) -> HookInput:
    """Return what hooks are told of *call*, in a workspace at *directory* of the project at *root*."""
    arguments = orjson.loads(call.input)
    payload = {
        "event": PRE_TOOL_USE,
        "session_id": call.session_id,
        "cwd": str(directory),
        "tool_name": call.name,
        "tool_input": arguments,
    }
    variables = {
        "EVENT": PRE_TOOL_USE,
        "TOOL_NAME": call.name,
        "SESSION_ID": call.session_id,
        "CWD": str(directory),
        "PROJECT_DIR": str(root),
        "TOOL_INPUT_COMMAND": arguments.get("command"),
        "TOOL_INPUT_FILE_PATH": arguments.get("file_path"),
    }
    return HookInput(
        payload=orjson.dumps(payload, option=orjson.OPT_APPEND_NEWLINE),
        variables={
            f"CRUSH_{name}": text for name, text in variables.items() if isinstance(text, str)
        },
    )


def _is_valid(value: str) -> bool:
    return "\0" not in value and len(value.encode()) <= MAX_VARIABLE_BYTES


# ── What one hook answers ───────────────────────────────────────────────────────────────────────


class Decision(StrEnum):
    """What a hook thinks of a call."""

    NONE = "none"
    ALLOW = "allow"
    DENY = "deny"


@frozen(kw_only=True)
class HookAnswer:
    """What a hook answers, or all of them together.

    `halt` ends the turn, `context` is for the model, and `patch` replaces arguments of the call, each
    as a whole.
    """

    decision: Decision = Decision.NONE
    halt: bool = False
    reason: str = ""
    context: str = ""
    patch: JsonObject = field(factory=dict, repr=False)

    @property
    def refuses(self) -> bool:
        """Whether the call must not be made."""
        return self.halt or self.decision is Decision.DENY


NO_OPINION: Final = HookAnswer()


def read_answer(exit_code: int | None, stdout: str, stderr: str) -> HookAnswer:
    """Return what a hook that has ended by itself has answered."""
    if exit_code == 0:
        return _spoken(stdout)
    if exit_code in {DENY_EXIT_CODE, HALT_EXIT_CODE}:
        return HookAnswer(
            decision=Decision.DENY, halt=exit_code == HALT_EXIT_CODE, reason=clipped(stderr.strip())
        )
    return NO_OPINION


def invalid_variable_answer(variable: str) -> HookAnswer:
    """Return the answer about a call that cannot be shown to a hook."""
    reason = f"no hook can be asked: {variable} would be too long, or have a null character in it"
    return HookAnswer(decision=Decision.DENY, reason=reason)


_DECISIONS: Final = {
    "allow": Decision.ALLOW,
    "approve": Decision.ALLOW,
    "deny": Decision.DENY,
    "block": Decision.DENY,
}
_ENVELOPE: Final = {
    "permissionDecision": "decision",
    "permissionDecisionReason": "reason",
    "additionalContext": "context",
    "updatedInput": "updated_input",
}
"""What hooks that were written for Claude Code call the same, in an object of its own."""


def _spoken(text: str) -> HookAnswer:
    """Read what a hook has written. A part that has the wrong type does not spoil the others."""
    said = _object(text)
    inner = _object(said.get("hookSpecificOutput"))
    said |= {ours: inner[theirs] for theirs, ours in _ENVELOPE.items() if theirs in inner}
    return HookAnswer(
        decision=_DECISIONS.get(_text(said.get("decision")).lower(), Decision.NONE),
        halt=said.get("halt") is True or said.get("continue") is False,
        reason=clipped(_text(said.get("reason")) or _text(said.get("stopReason"))),
        context=clipped(_text(said.get("context"))),
        patch=_object(said.get("updated_input")),
    )


def _object(value: Json) -> dict[str, Json]:
    """Return an object, also one that is written as text; an empty one in place of anything else."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {}
    return value if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    """Return a text, or the texts of a list, one to a line; nothing in place of anything else."""
    texts = value if isinstance(value, list) else [value]
    return _joined(text for text in texts if isinstance(text, str))


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(filter(None, texts))


# ── What all of them answer ─────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class HookVerdict:
    """What the hooks of a call have answered: each of them, and together."""

    hooks: tuple[HookConfig, ...]
    answers: tuple[HookAnswer, ...]
    combined: HookAnswer

    def rewritten(self, call: ToolCall) -> ToolCall:
        """Return *call* as the hooks want it to be made."""
        if not self.combined.patch:
            return call
        arguments = orjson.loads(call.input) | self.combined.patch
        return evolve(call, input=orjson.dumps(arguments).decode())

    def refusal(self) -> ToolResult:
        """Return what the model is told in place of a result."""
        stops = self.combined.halt
        text = "A hook has ended the turn" if stops else "A hook has refused this call"
        content = ": ".join(filter(None, (text, self.combined.reason)))
        return ToolResult(content=content, is_error=True, stop_turn=stops)

    def added_to(self, result: ToolResult) -> ToolResult:
        """Return *result* with what the hooks say to the model, and to those who look on."""
        return evolve(
            result,
            content=_joined((result.content, self.combined.context)),
            metadata={**result.metadata, METADATA: self._metadata()},
        )

    def _metadata(self) -> JsonObject:
        return {
            "hook_count": len(self.hooks),
            **_shown(self.combined),
            "hooks": [
                {"name": hook_name(hook), **_shown(answer), **_matcher(hook)}
                for hook, answer in zip(self.hooks, self.answers, strict=True)
            ],
        }


_BY_WEIGHT: Final = (Decision.DENY, Decision.ALLOW)


def combine_answers(hooks: tuple[HookConfig, ...], answers: Sequence[HookAnswer]) -> HookVerdict:
    """Return the verdict of all *answers*, which are in the order of their *hooks*."""
    decisions = {answer.decision for answer in answers}
    patch: dict[str, Json] = {}
    for answer in answers:
        patch |= answer.patch
    combined = HookAnswer(
        decision=next((each for each in _BY_WEIGHT if each in decisions), Decision.NONE),
        halt=any(answer.halt for answer in answers),
        reason=_joined(answer.reason for answer in answers if answer.refuses),
        context=_joined(answer.context for answer in answers),
        patch=patch,
    )
    return HookVerdict(hooks=hooks, answers=tuple(answers), combined=combined)


def _matcher(hook: HookConfig) -> JsonObject:
    return {"matcher": hook.matcher} if hook.matcher else {}


def _shown(answer: HookAnswer) -> JsonObject:
    said = {"halt": answer.halt, "reason": answer.reason, "input_rewrite": bool(answer.patch)}
    return {"decision": answer.decision.value, **{key: each for key, each in said.items() if each}}
