"""What a replay has instead of the outside world: a model, tools and hooks that do as they were recorded.

Everything that came from outside comes again at the time at which it came, counted from the beginning of the
run. Between these times the virtual clock stands still, so what the agent itself does takes no time, and
everything that one input causes has happened before the next one comes.
"""

import base64
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, evolve, field

from crush_trio.agent.asks.questions import QuestionTool
from crush_trio.agent.record.capsule import Entry
from crush_trio.agent.record.recorded import exchange_place
from crush_trio.agent.turn.plan import Tools
from crush_trio.agent.turn.subagent import AgentTool
from crush_trio.config.checks import HookEvent
from crush_trio.errors import CrushError
from crush_trio.integrations.hook_answers import Decision, HookAnswer, HookVerdict, combine_answers
from crush_trio.integrations.hook_input import Occasion
from crush_trio.net.errors import ConnectFailed
from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    Parts,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
)
from crush_trio.providers.errors import ProviderContextFull, ProviderError, ProviderRefused
from crush_trio.testing.capsule.file import CapsuleFile
from crush_trio.tools.base import Media, Tool, ToolCall, ToolError, ToolResult, Wanted
from crush_trio.wire.asks import Question
from crush_trio.wire.codec import structure
from crush_trio.wire.config import HookConfig
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishReason

REAL: Final = frozenset({AgentTool.name, QuestionTool.name})
"""The tools that are not played: they use only the agent itself and the answers of people."""

OVER: Final = "the recording has no further call here"

MAIN: Final = "session"


@define(eq=False)
class SessionNames:
    """Names for sessions that are the same in a recording and in its replay.

    The id of a task's session ends with the id of the call that started it; the rest is random.
    """

    main: SessionId
    _known: dict[str, str] = field(factory=dict, init=False)
    _counts: defaultdict[str, int] = field(factory=lambda: defaultdict(int), init=False)

    def of(self, session_id: str) -> str:
        """Return the name of a session."""
        if session_id == self.main or not session_id:
            return MAIN
        if session_id not in self._known:
            call = session_id.rpartition("$$")[2]
            self._counts[call] += 1
            number = self._counts[call]
            self._known[session_id] = f"task {call}" + (f" ({number})" if number > 1 else "")
        return self._known[session_id]


@define(eq=False)
class Player:
    """Plays one capsule. A provider, hooks and tools in one object, because they share the clock."""

    capsule: CapsuleFile
    begun: float = field(default=0.0, init=False)
    """When the replayed run was submitted, on the virtual clock."""
    _now: SessionNames = field(init=False)
    """The names of the sessions of the replay."""
    _exchanges: dict[tuple[str, str], list[list[Entry]]] = field(init=False, repr=False)
    _calls: dict[tuple[str, str], list[list[Entry]]] = field(init=False, repr=False)
    _specs: dict[str, tuple[str, JsonObject]] = field(factory=dict, init=False, repr=False)
    _parallel: set[str] = field(init=False, repr=False)
    _hooks: dict[tuple[str, str, str], list[Entry]] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        main = SessionId(self.capsule.header["session"]["id"])
        self._now, recorded = SessionNames(main), SessionNames(main)
        self._exchanges, self._calls = defaultdict(list), defaultdict(list)
        self._hooks = defaultdict(list)
        open_: dict[int, list[Entry]] = {}
        for entry in self.capsule.entries:
            match entry["k"]:
                case "request":
                    open_[entry["x"]] = []
                    place = recorded.of(entry["session"]), entry["for"]
                    self._exchanges[place].append(open_[entry["x"]])
                    for name, (description, parameters) in entry.get("tools", {}).items():
                        self._specs[name] = description, parameters
                case "part" | "parts" | "failed" | "heard":
                    open_[entry["x"]].append(entry)
                case "tool":
                    self._calls[recorded.of(entry["session"]), entry["call"]].append([])
                case "permit" | "refused" | "ask" | "progress" | "result" | "raised":
                    self._calls[recorded.of(entry["session"]), entry["call"]][-1].append(entry)
                case "hooks":
                    place3 = entry["event"], entry["subject"], entry["call"]
                    self._hooks[place3].append(entry)
        self._parallel = {each["name"] for each in self.capsule.of("tool") if each.get("parallel")}

    async def wait(self, at: float) -> None:
        """Wait until *at* seconds after the beginning of the run."""
        await trio.sleep_until(self.begun + at)

    async def plan(self) -> None:
        """Wait until the recorded run had been planned; for ever if it was cancelled before that.

        Or before the message for its first answer was stored, which takes no time here.
        """
        planned = next((each["t"] for each in self.capsule.of("planned")), 0.0)
        answers = (
            each["type"] == "message"
            and each["change"] == "created"
            and each["value"]["role"] == "assistant"
            and not each["value"]["parts"]
            for each in self.capsule.of("event")
        )
        cancelled = self.capsule.of("cancel") and not any(answers)
        await self.wait(inf if cancelled else planned)

    # ── The model ───────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Play the next recorded answer for the session and purpose of the current call."""
        await trio.lowlevel.checkpoint()
        session_id, purpose = exchange_place()
        waiting = self._exchanges.get((self._now.of(session_id), purpose))
        if not waiting:
            raise ProviderRefused(OVER)
        yield PlayedParts(self, request, _steps(waiting.pop(0)))

    # ── Tools ───────────────────────────────────────────────────────────────────────────────────

    def stand_in(self, tools: Tools) -> Tools:
        """Return the tools that the recorded run had, each described as it is now, but played.

        All tools if the recording names none: a replay may come one step further. They are played too,
        because a capsule may come from anyone, and must not reach a file or the network.
        """
        return {
            name: tools[name] if name in REAL and name in tools else self._tool(name, tools)
            for name in self._specs or tools
            if name != AgentTool.name
        }

    def _tool(self, name: str, tools: Tools) -> Tool:
        if (real := tools.get(name)) is not None:
            return PlayedTool(self, name, real.description, real.parameters, real.parallel)
        description, parameters = self._specs[name]
        return PlayedTool(self, name, description, parameters, name in self._parallel)

    def actions(self, call: ToolCall) -> list[Entry] | None:
        """Return what a call did when it was recorded; None if it was not made."""
        waiting = self._calls.get((self._now.of(call.session_id), call.id))
        return waiting.pop(0) if waiting else None

    # ── Hooks ───────────────────────────────────────────────────────────────────────────────────

    def matching(
        self, subject: str, event: HookEvent = HookEvent.PRE_TOOL_USE
    ) -> tuple[HookConfig, ...]:
        """Return the hooks that were run for an event; none if none is left."""
        for (name, about, _), waiting in self._hooks.items():
            if waiting and (name, about) == (event.value, subject):
                return _hooks_of(waiting[0])
        return ()

    async def ask(
        self, hooks: tuple[HookConfig, ...], call: ToolCall, result: ToolResult | None = None
    ) -> HookVerdict:
        """Return the recorded verdict about a call or its result."""
        event = HookEvent.PRE_TOOL_USE if result is None else HookEvent.POST_TOOL_USE
        return await self._verdict(hooks, event, call.name, call.id)

    async def ask_about(
        self, hooks: tuple[HookConfig, ...], occasion: Occasion, subject: str = ""
    ) -> HookVerdict:
        """Return the recorded verdict about an event."""
        return await self._verdict(hooks, occasion.event, subject, "")

    async def _verdict(
        self, hooks: tuple[HookConfig, ...], event: HookEvent, subject: str, call: str
    ) -> HookVerdict:
        await trio.lowlevel.checkpoint()
        waiting = self._hooks.get((event.value, subject, call))
        if not waiting:
            return combine_answers(hooks, [HookAnswer()] * len(hooks))
        entry = waiting.pop(0)
        await self.wait(entry["t"])
        answers = [
            HookAnswer(**{**each, "decision": Decision(each["decision"])})
            for each in entry["answers"]
        ]
        verdict = combine_answers(_hooks_of(entry), answers)
        return evolve(verdict, directory=Path(self.capsule.header["directory"]))


def _hooks_of(entry: Entry) -> tuple[HookConfig, ...]:
    return tuple(structure(each, HookConfig) for each in entry["hooks"])


# ── Answers of the model ────────────────────────────────────────────────────────────────────────


@define(eq=False)
class PlayedParts:
    """The parts of a recorded answer, each at its time; then its failure, or silence."""

    player: Player = field(repr=False)
    request: ModelRequest = field(repr=False)
    steps: "Iterator[tuple[float, StreamPart | Exception | None]]" = field(repr=False)

    def __aiter__(self) -> "PlayedParts":
        return self

    async def __anext__(self) -> StreamPart:
        for at, step in self.steps:
            await self.player.wait(at)
            if isinstance(step, Exception):
                raise step
            if step is not None:
                return step
            self.request.heard()
        await trio.sleep_forever()
        raise AssertionError("unreachable")


def _steps(entries: list[Entry]) -> Iterator[tuple[float, StreamPart | Exception | None]]:
    """Yield the parts of an exchange with their times; None is a sign of life."""
    steps: list[tuple[float, StreamPart | Exception | None]] = []
    for entry in entries:
        match entry["k"]:
            case "heard":
                steps.append((entry["t"], None))
            case "failed":
                steps.append((entry["t"], _failure(entry["error"])))
            case "part":
                steps.append((entry["t"], _part(entry)))
            case _:
                for at, text in entry["pieces"]:
                    steps.append((at, _delta(entry, text)))
    # Collected text is recorded after what came meanwhile, such as signs of life.
    return iter(sorted(steps, key=lambda step: step[0]))


def _delta(entry: Entry, text: str) -> StreamPart:
    match entry["part"]:
        case "text":
            return TextDelta(text)
        case "reasoning":
            return ReasoningDelta(text)
    return ToolCallDelta(entry["id"], text)


def _part(entry: Entry) -> StreamPart:
    match entry["part"]:
        case "reasoned":
            return ReasoningEnd(entry["signature"])
        case "call":
            return ToolCallBegin(entry["id"], entry["name"])
        case "called":
            return ToolCallEnd(entry["id"], entry["name"], entry["input"])
    return Finished(reason=FinishReason(entry["reason"]), usage=Usage(**entry["usage"]))


def _failure(error: Entry) -> Exception:
    if "code" not in error:
        return _other(error)
    kinds = {each.code: each for each in _subclasses(ProviderError)}
    kind = kinds.get(error["code"], ProviderError)
    more: dict[str, Any] = {"status": error["status"], "retry_after": error["retry_after"]}
    if kind is ProviderContextFull:
        more["window"] = error["window"]
    failure: ProviderError = kind(error["detail"], **more)
    if error["connect"]:
        failure.__cause__ = ConnectFailed("as recorded")
    return failure


def _subclasses(cls: type[CrushError]) -> Iterator[type[Any]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _other(error: Mapping[str, str]) -> Exception:
    """Return an exception that reads like one of a class which is not known here."""
    kind: type[Exception] = type(error["type"], (Exception,), {})
    return kind(error["text"])


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class PlayedTool:
    """A tool that does what it did when it was recorded: it wants, asks, reports and returns the same."""

    player: Player = field(repr=False)
    name: str
    description: str = field(repr=False)
    parameters: JsonObject = field(repr=False)
    parallel: bool

    async def run(self, call: ToolCall) -> ToolResult:
        """Do again what the recorded call did; wait for ever where it was cancelled."""
        await trio.lowlevel.checkpoint()
        actions = self.player.actions(call)
        if actions is None:
            raise ToolError(OVER)
        for number, action in enumerate(actions):
            await self.player.wait(action["t"])
            match action["k"]:
                case "permit":
                    await self._permit(call, action["wanted"], actions[number + 1 :])
                case "progress":
                    call.progress(action["text"])
                case "ask" if call.ask is not None:
                    await call.ask(structure(action["questions"], tuple[Question, ...]))
                case "raised":
                    raise _other(action["error"])
                case "result":
                    return _result(action["result"])
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async def _permit(  # noqa: ASYNC910  # the caller has waited
        self, call: ToolCall, wanted: Entry, later: list[Entry]
    ) -> None:
        """Ask for permission. A refusal ends the call, unless the recorded tool went on after it."""
        try:
            await call.permit(Wanted(**{**wanted, "path": Path(wanted["path"])}))
        except ToolError:
            refused = bool(later) and later[0]["k"] == "refused"
            if not refused or later[-1].get("raised", True):
                raise


def _result(told: Entry) -> ToolResult:
    media = [
        Media(data=base64.b64decode(each["data"]), mime_type=each["mime_type"])
        for each in told["media"]
    ]
    return ToolResult(
        content=told["content"],
        is_error=told["is_error"],
        stop_turn=told["stop_turn"],
        by_person=told["by_person"],
        metadata=told["metadata"],
        media=media[0] if media else None,
        more_media=tuple(media[1:]),
    )
