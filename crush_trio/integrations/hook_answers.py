"""Input and answers of hooks: matching, parsing and combining, without I/O.

A hook answers by its exit code and its output (I10). An answer that cannot be parsed means "no opinion":
a broken hook must not stop work. A denial always counts, whatever else is wrong with the answer. A call
that does not fit into a hook's environment variables is denied; otherwise a model could avoid hooks by
making a command long enough.

Several answers are combined in the order of the configuration (I9), not in the order of arrival.
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
"""The exit code by which a hook denies a call."""

HALT_EXIT_CODE: Final = 49
"""The exit code by which a hook denies a call and ends the turn."""

MAX_VARIABLE_BYTES: Final = 100_000
"""Maximum bytes of a variable. Linux limits one string of the environment to 128 KiB."""

METADATA: Final = "hook"
"""The key of the hooks' answers in the metadata of a result."""


def matching_hooks(hooks: Hooks, tool_name: str) -> tuple[HookConfig, ...]:
    """Return the hooks for a tool; of several with the same command only the first."""
    found: dict[str, HookConfig] = {}
    for hook in hooks_before_tools(hooks):
        if re.search(hook.matcher, tool_name):
            found.setdefault(hook.command, hook)
    return tuple(found.values())


def hook_name(hook: HookConfig) -> str:
    """Return the name of a hook for people: its configured name, or its redacted command."""
    return hook.name or redact_text(hook.command)


# ── Input ───────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class HookInput:
    """A call as hooks get it: `payload` on standard input, `variables` in the environment."""

    payload: bytes = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)

    @property
    def invalid_variable(self) -> str:
        """The name of a variable that cannot be passed to a program; empty if all can."""
        invalid = (name for name, value in self.variables.items() if not _is_valid(value))
        return next(invalid, "")


def hook_input(call: ToolCall, directory: Path, root: Path) -> HookInput:
    """Return the hook input for *call*, in a workspace at *directory* of the project at *root*."""
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


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


class Decision(StrEnum):
    """The decision of a hook about a call."""

    NONE = "none"
    ALLOW = "allow"
    DENY = "deny"


@frozen(kw_only=True)
class HookAnswer:
    """The answer of one hook, or the combined answer of several.

    `halt` ends the turn, `context` is text for the model, and `patch` replaces whole arguments of the
    call.
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
    """Return the answer of a hook that has ended by itself."""
    if exit_code == 0:
        return _spoken(stdout)
    if exit_code in {DENY_EXIT_CODE, HALT_EXIT_CODE}:
        return HookAnswer(
            decision=Decision.DENY, halt=exit_code == HALT_EXIT_CODE, reason=clipped(stderr.strip())
        )
    return NO_OPINION


def invalid_variable_answer(variable: str) -> HookAnswer:
    """Return the denial of a call that cannot be passed to a hook."""
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
"""The keys of hooks written for Claude Code, inside `hookSpecificOutput`, and our names for them."""


def _spoken(text: str) -> HookAnswer:
    """Parse the output of a hook. A key whose value has the wrong type is ignored."""
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
    """Return an object, also one encoded as JSON text; an empty one for anything else."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {}
    return value if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    """Return a text, or the texts of a list joined by line feeds; empty for anything else."""
    texts = value if isinstance(value, list) else [value]
    return _joined(text for text in texts if isinstance(text, str))


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(filter(None, texts))


# ── The verdict ─────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class HookVerdict:
    """The answers of all hooks of a call, each and combined."""

    hooks: tuple[HookConfig, ...]
    answers: tuple[HookAnswer, ...]
    combined: HookAnswer

    def rewritten(self, call: ToolCall) -> ToolCall:
        """Return *call* with the arguments that the hooks have replaced."""
        if not self.combined.patch:
            return call
        arguments = orjson.loads(call.input) | self.combined.patch
        return evolve(call, input=orjson.dumps(arguments).decode())

    def refusal(self) -> ToolResult:
        """Return the error result of a denied call."""
        stops = self.combined.halt
        text = "A hook has ended the turn" if stops else "A hook has refused this call"
        content = ": ".join(filter(None, (text, self.combined.reason)))
        return ToolResult(content=content, is_error=True, stop_turn=stops)

    def added_to(self, result: ToolResult) -> ToolResult:
        """Return *result* with the hooks' context for the model and their metadata for clients."""
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
    """Combine *answers*, which are in the order of their *hooks*. A denial outweighs an approval."""
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
