"""Answers of hooks: parsing and combining, without I/O.

A hook answers by its exit code and its output (I10). An answer that cannot be parsed means "no opinion":
a broken hook must not stop work. A denial always counts, whatever else is wrong with the answer. A call
that does not fit into a hook's environment variables is denied; otherwise a model could avoid hooks by
making a command long enough.

Several answers are combined in the order of the configuration (I9), not in the order of arrival.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import orjson
from attrs import evolve, field, frozen

from crush_trio.config.checks import HookEvent
from crush_trio.config.redaction import redact_text
from crush_trio.integrations.base import read_json
from crush_trio.tools.base import ToolCall, ToolResult, Wanted
from crush_trio.tools.shell.jobs import clipped
from crush_trio.wire.config import HookConfig
from crush_trio.wire.fields import Json, JsonObject

DENY_EXIT_CODE: Final = 2
"""The exit code by which a hook denies a call."""

HALT_EXIT_CODE: Final = 49
"""The exit code by which a hook denies a call and ends the turn."""

METADATA: Final = "hook"
METADATA_AFTER: Final = "hook_after"
"""The keys of the hooks' answers in the metadata of a result: before the tool ran, and after it."""

ASK_ACTION: Final = "execute"
"""The action of the permission request that a hook wants."""


def hook_name(hook: HookConfig) -> str:
    """Return the name of a hook for people: its configured name, or its redacted command."""
    return hook.name or redact_text(hook.command)


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


class Decision(StrEnum):
    """The decision of a hook about a call."""

    NONE = "none"
    ALLOW = "allow"
    ASK = "ask"
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


_PLAIN_CONTEXT: Final = {HookEvent.USER_PROMPT_SUBMIT, HookEvent.SESSION_START}
"""The events at which output that is not JSON is context for the model."""


def read_answer(
    exit_code: int | None, stdout: str, stderr: str, event: HookEvent = HookEvent.PRE_TOOL_USE
) -> HookAnswer:
    """Return the answer of a hook that has ended by itself."""
    if exit_code == 0:
        if event in _PLAIN_CONTEXT and not stdout.lstrip().startswith("{"):
            return HookAnswer(context=clipped(stdout.strip()))
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
    "ask": Decision.ASK,
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
            value = read_json(value)
        except ValueError:
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
    """The answers of all hooks of an event, each and combined."""

    hooks: tuple[HookConfig, ...]
    answers: tuple[HookAnswer, ...]
    combined: HookAnswer
    directory: Path = Path("/")
    """The directory of the workspace."""

    def wanted(self, call: ToolCall) -> Wanted:
        """Return the request with which a person decides about *call*."""
        return Wanted(
            action=ASK_ACTION,
            description=": ".join(filter(None, (_ASKS, self.combined.reason))),
            params=orjson.loads(call.input),
            path=self.directory,
            always=True,
        )

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

    def added_after(self, result: ToolResult) -> ToolResult:
        """Return *result* with what hooks say about it after the tool has run."""
        said = self.combined
        feedback = ": ".join(filter(None, (_OBJECTS, said.reason))) if said.refuses else ""
        return evolve(
            result,
            content=_joined((result.content, feedback, said.context)),
            stop_turn=result.stop_turn or said.halt,
            metadata={**result.metadata, METADATA_AFTER: self._metadata()},
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


_ASKS: Final = "A hook wants you to decide about this call"
_OBJECTS: Final = "A hook objects to this result"

_BY_WEIGHT: Final = (Decision.DENY, Decision.ASK, Decision.ALLOW)


def combine_answers(hooks: tuple[HookConfig, ...], answers: Sequence[HookAnswer]) -> HookVerdict:
    """Combine *answers*, which are in the order of their *hooks*.

    A denial outweighs a question to a person, and that an approval.
    """
    decisions = {answer.decision for answer in answers}
    decision = next((each for each in _BY_WEIGHT if each in decisions), Decision.NONE)
    patch: dict[str, Json] = {}
    for answer in answers:
        patch |= answer.patch
    combined = HookAnswer(
        decision=decision,
        halt=any(answer.halt for answer in answers),
        reason=_joined(
            answer.reason
            for answer in answers
            if answer.refuses or decision is answer.decision is Decision.ASK
        ),
        context=_joined(answer.context for answer in answers),
        patch=patch,
    )
    return HookVerdict(hooks=hooks, answers=tuple(answers), combined=combined)


def _matcher(hook: HookConfig) -> JsonObject:
    return {"matcher": hook.matcher} if hook.matcher else {}


def _shown(answer: HookAnswer) -> JsonObject:
    said = {"halt": answer.halt, "reason": answer.reason, "input_rewrite": bool(answer.patch)}
    return {"decision": answer.decision.value, **{key: each for key, each in said.items() if each}}
