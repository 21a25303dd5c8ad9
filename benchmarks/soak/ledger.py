"""The ledger of a soak: every prompt, what was done to it, and what the server answered.

Plain data, no I/O. A contradiction to a promise raises `Violation` at once.
Times are those of `time.monotonic`; infinity is "not yet".
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Final

from attrs import define, field

ENDED: Final = frozenset({"completed", "cancelled", "errored", "folded", "interrupted"})

CANCEL_LIMIT: Final = 60.0
"""Seconds that a cancelled run may take to end, disk faults and a busy machine included."""

IN_FLIGHT: Final = 5.0
"""Seconds that a request to the model may be on its way when the cancel of its run is answered."""

_TAG: Final = re.compile(r"#(\S+)")


class Violation(Exception):
    """A promise was broken."""


def tags_of(text: str) -> list[str]:
    """Return the tags in *text*: the names of the prompts it was made from."""
    return _TAG.findall(text)


@define(eq=False)
class Stop:
    """Something that cancels runs of a session: a cancel, an interrupt, the clearing of a queue."""

    what: str
    sent: float
    answered: float = inf
    void: bool = field(default=False, init=False)
    """Whether it was refused: then it must not have cancelled anything."""

    def may_hit(self, prompt: "Prompt") -> bool:
        """Whether it can be why *prompt* was cancelled."""
        return not self.void and self.answered >= prompt.sent and self.sent <= prompt.ended_at


@define(eq=False)
class Talk:
    """A session of the soak."""

    id: str
    workspace: int
    ordered: bool
    """Whether its queue is never edited, so that prompts run in the order of acceptance."""
    stops: list[Stop] = field(factory=list, init=False)
    prompts: list["Prompt"] = field(factory=list, init=False)


@define(eq=False)
class Prompt:
    """A prompt that was sent, with everything known about it."""

    tag: str
    talk: Talk
    texts: list[str]
    """The texts that it may have, the newest last; more than one while an edit is in doubt."""
    named: bool
    """Whether its tag is its run id; a prompt without a run id may be folded."""
    sent: float
    policy: str = ""
    answered: float = inf
    verdict: str = field(default="", init=False)
    """`accepted`, `unknown` if the connection was lost, or the code of the refusal."""
    never: str = field(default="", init=False)
    """Why the model must never see it."""
    not_after: float = field(default=inf, init=False)
    """The time after which the model must not be asked about it."""
    due: float = field(default=inf, init=False)
    """The time by which it must have ended, because it was cancelled."""
    asked: list[float] = field(factory=list, init=False)
    """When the model was asked about it."""
    shared: bool = field(default=False, init=False)
    """Whether others were folded in, so that the model answered the last one of them."""
    state: str = field(default="", init=False)
    """How it ended, as the streams say."""
    ended_at: float = field(default=inf, init=False)
    stops: list[Stop] = field(factory=list, init=False)
    """What was done to this run alone."""
    original: str = field(init=False)
    """The text that it was sent with."""

    def __attrs_post_init__(self) -> None:
        self.original = self.texts[0]

    @property
    def accepted(self) -> bool:
        """Whether there was a 202."""
        return self.verdict == "accepted"

    @property
    def refused(self) -> bool:
        """Whether the server has refused it."""
        return self.verdict not in {"", "accepted", "unknown"}

    @property
    def text(self) -> str:
        """The newest text."""
        return self.texts[-1]


@define(eq=False)
class Ledger:
    """All prompts of a soak."""

    prompts: dict[str, Prompt] = field(factory=dict, init=False)
    talks: dict[str, Talk] = field(factory=dict, init=False)
    shown: set[str] = field(factory=set, init=False)
    """The tags that were in a request to a model, whether as its prompt or before that."""
    shutdowns: list[Stop] = field(factory=list, init=False)
    """The stops of the whole server, which cancel everything."""
    troubles: list[Stop] = field(factory=list, init=False)
    """The times in which the disk did not work: only then may a run fail."""
    _cancelled: dict[str, Prompt] = field(factory=dict, init=False)

    # ── Prompts ─────────────────────────────────────────────────────────────────────────────────

    def talk(self, session: str, workspace: int, *, ordered: bool) -> Talk:
        """Add a new session."""
        talk = Talk(session, workspace, ordered)
        self.talks[session] = talk
        return talk

    def send(self, prompt: Prompt) -> Stop | None:
        """Add a prompt that is about to be sent; if it interrupts, return it as a stop."""
        self.prompts[prompt.tag] = prompt
        prompt.talk.prompts.append(prompt)
        return self.stop(prompt.talk, "interrupt", prompt.sent) if _interrupts(prompt) else None

    def settle(self, prompt: Prompt, verdict: str, now: float, stop: Stop | None) -> None:
        """Note the answer to a prompt."""
        prompt.verdict, prompt.answered = verdict, now
        if prompt.refused and prompt.asked:
            raise Violation(
                f"{prompt.tag} was refused ({verdict}) after the model was asked about it"
            )
        if stop is None or verdict == "unknown":
            return
        if prompt.accepted:
            before = [other for other in prompt.talk.prompts if other is not prompt]
            self._cover(stop, before, now)
        else:
            stop.void = True

    # ── Stops ───────────────────────────────────────────────────────────────────────────────────

    def stop(self, talk: Talk, what: str, now: float) -> Stop:
        """Add something that is about to be sent and may cancel any run of a session."""
        stop = Stop(what, now)
        talk.stops.append(stop)
        return stop

    def stop_one(self, prompt: Prompt, what: str, now: float) -> Stop:
        """Add something that is about to be sent and may cancel one run."""
        stop = Stop(what, now)
        prompt.stops.append(stop)
        return stop

    def stopped(self, stop: Stop, prompts: Iterable[Prompt], now: float) -> None:
        """Note that *stop* took effect: *prompts* are those that it reaches if they had not ended."""
        self._cover(stop, prompts, now)

    def withdrawn(self, prompt: Prompt, why: str) -> None:
        """Note that *prompt* was cancelled before it began, as the server said."""
        prompt.never = prompt.never or why
        if prompt.tag in self.shown:
            raise Violation(f"{prompt.tag} was in a model request, and {why}")

    def restarted(self, now: float) -> None:
        """Restart the time limit of cancelled runs, after a restart of the server."""
        for prompt in self._cancelled.values():
            prompt.due = now + CANCEL_LIMIT

    def _cover(self, stop: Stop, prompts: Iterable[Prompt], now: float) -> None:
        stop.answered = now
        for prompt in prompts:
            if not prompt.accepted or prompt.answered > stop.sent or prompt.state:
                continue
            prompt.not_after = min(prompt.not_after, now)
            if prompt.named:  # the streams show the others under our id only
                prompt.due = min(prompt.due, now + CANCEL_LIMIT)
                self._cancelled[prompt.tag] = prompt

    # ── What the server says ────────────────────────────────────────────────────────────────────

    def ask(self, prompt_tags: list[str], earlier: Iterable[str], now: float) -> None:
        """Check a request to the model: what it is about, and what came before that."""
        for tag in earlier:
            self._show(tag)
        for tag in prompt_tags:
            prompt = self._show(tag)
            if tag != prompt_tags[-1]:  # folded into, or cancelled before it was answered
                prompt.shared |= not prompt.state
                continue
            if now > prompt.ended_at + IN_FLIGHT:
                raise Violation(f"the model was asked about {tag}, which had {prompt.state} before")
            if now > prompt.not_after + IN_FLIGHT:
                late = now - prompt.not_after
                raise Violation(f"the model was asked about {tag} {late:.1f} s after its cancel")
        for tag in prompt_tags:
            if not self.prompts[tag].state:
                self.prompts[tag].asked.append(now)

    def _show(self, tag: str) -> Prompt:
        prompt = self.prompts.get(tag)
        if prompt is None:
            raise Violation(f"a model request has a prompt that was never sent: {tag}")
        if prompt.never or prompt.refused:
            raise Violation(f"{tag} is in a model request: {prompt.never or prompt.verdict}")
        self.shown.add(tag)
        return prompt

    def end(self, tag: str, state: str, now: float) -> None:
        """Check an ending that a stream told, of a run that has a caller's id."""
        prompt = self.prompts.get(tag)
        if prompt is None:
            raise Violation(f"an ending of a run that was never sent: {tag} {state}")
        if prompt.state:
            if prompt.state != state:
                raise Violation(f"{tag} ended as {prompt.state} and as {state}")
            return
        prompt.state, prompt.ended_at = state, now
        self._cancelled.pop(tag, None)
        if prompt.refused:
            raise Violation(f"{tag} was refused ({prompt.verdict}) and {state}")
        self._check_state(prompt)

    def _check_state(self, prompt: Prompt) -> None:
        tag, state = prompt.tag, prompt.state
        if state == "folded":
            raise Violation(f"{tag} has a run id and was folded")
        held = prompt.text.startswith("hold") and not prompt.shared
        if state == "completed" and held:
            raise Violation(f"{tag} completed, and the model never answered it in full")
        if state == "completed" and not prompt.asked:
            raise Violation(f"{tag} completed, and the model was never asked")
        if state == "cancelled" and not any(stop.may_hit(prompt) for stop in self.stops_of(prompt)):
            raise Violation(f"{tag} was cancelled by nothing that was sent")

        if state == "errored" and not any(trouble.may_hit(prompt) for trouble in self.troubles):
            raise Violation(f"{tag} errored, and nothing was wrong with the disk")

    def stops_of(self, prompt: Prompt) -> Iterator[Stop]:
        """Return everything that can have cancelled *prompt*."""
        yield from prompt.stops
        yield from prompt.talk.stops
        yield from self.shutdowns

    def check_due(self, now: float) -> None:
        """Raise if a cancelled run should have ended by now."""
        for prompt in self._cancelled.values():
            if now > prompt.due:
                raise Violation(f"{prompt.tag} was cancelled and did not end in {CANCEL_LIMIT} s")

    def unsettled(self) -> list[Prompt]:
        """Return the prompts with a run id that were accepted and have not ended yet."""
        return [p for p in self.prompts.values() if p.named and p.accepted and not p.state]


def _interrupts(prompt: Prompt) -> bool:
    return prompt.policy == "interrupt"


def check_sequence(where: str, prompts: Sequence[Prompt]) -> None:
    """Raise if a prompt comes before one that was answered before it was even sent."""
    earliest, first = inf, None
    for prompt in reversed(prompts):
        if earliest < prompt.sent and first is not None:
            raise Violation(f"{where}: {prompt.tag} before {first.tag}, which was accepted earlier")
        if prompt.answered < earliest:
            earliest, first = prompt.answered, prompt
