"""The ledger of a check: every prompt, what was done to it, and how it ended.

Plain data, no I/O. A contradiction to a promise raises `Violation` at once. Times are those of one
monotonic clock; infinity is "not yet". The soak of `benchmarks/` keeps its prompts in the same ledger
and adds what only a server's own model and disk can tell.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from attrs import define, field

ENDED: Final = frozenset({"completed", "cancelled", "errored", "folded", "interrupted"})
"""The states in which a run has ended, as the native stream names them."""


class Violation(Exception):
    """A promise was broken; the text is the evidence."""


@define(eq=False)
class Stop:
    """Something that cancels runs of a session: a cancel, an interrupt, the clearing of a queue."""

    what: str
    sent: float
    answered: float = inf
    void: bool = field(default=False, init=False)
    """Whether it was refused: then it must not have cancelled anything."""

    def may_hit(self, prompt: "Prompt") -> bool:
        """Whether it can be why *prompt* was cancelled; not if it was answered before that was sent."""
        return not self.void and self.answered > prompt.sent and self.sent <= prompt.ended_at

    def was_lost_on(self, prompt: "Prompt") -> bool:
        """Whether *prompt* completed although this stop came in time.

        It came in time if the prompt was accepted before it was sent, and it was answered in the first
        half of the prompt's life. A stop that comes later may find the answer complete and the ending on
        its way, however slow the server is.
        """
        if self.void or prompt.state != "completed" or prompt.answered > self.sent:
            return False
        return self.answered - prompt.sent < (prompt.ended_at - prompt.sent) / 2


@define(eq=False)
class Talk:
    """A session in which prompts are sent."""

    id: str
    workspace: int = 0
    ordered: bool = True
    """Whether its queue is never edited, so that prompts run in the order of acceptance."""
    stops: list[Stop] = field(factory=list, init=False)
    prompts: list["Prompt"] = field(factory=list, init=False)


@define(eq=False)
class Prompt:
    """A prompt that was sent, with what is known about it."""

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
    state: str = field(default="", init=False)
    """How it ended, as the streams say."""
    ended_at: float = field(default=inf, init=False)
    stops: list[Stop] = field(factory=list, init=False)
    """What was done to this run alone."""
    original: str = field(init=False)
    """The text that it was sent with."""
    due: float = field(default=inf, init=False)
    """The time by which it must have ended, because it was cancelled."""

    # Known only where the model's requests are seen too, as in a soak:
    never: str = field(default="", init=False)
    """Why the model must never see it."""
    not_after: float = field(default=inf, init=False)
    """The time after which the model must not be asked about it."""
    asked: list[float] = field(factory=list, init=False)
    """When the model was asked about it."""
    shared: bool = field(default=False, init=False)
    """Whether others were folded in, so that the model answered the last one of them."""

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
    """All prompts, by tag, and all sessions."""

    prompts: dict[str, Prompt] = field(factory=dict, init=False)
    talks: dict[str, Talk] = field(factory=dict, init=False)

    def talk(self, session: str, workspace: int = 0, *, ordered: bool = True) -> Talk:
        """Add a new session."""
        talk = Talk(session, workspace, ordered)
        self.talks[session] = talk
        return talk

    def send(self, prompt: Prompt) -> Stop | None:
        """Add a prompt that is about to be sent; if it interrupts, return it as a stop."""
        self.prompts[prompt.tag] = prompt
        prompt.talk.prompts.append(prompt)
        interrupts = prompt.policy == "interrupt"
        return self.stop(prompt.talk, "interrupt", prompt.sent) if interrupts else None

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

    def stops_of(self, prompt: Prompt) -> Iterator[Stop]:
        """Return everything that can have cancelled *prompt*."""
        yield from prompt.stops
        yield from prompt.talk.stops

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
        if prompt.refused:
            raise Violation(f"{tag} was refused ({prompt.verdict}) and {state}")
        self.check_state(prompt)

    def check_state(self, prompt: Prompt) -> None:
        """Raise if *prompt* ended in a way that nothing explains."""
        tag, state = prompt.tag, prompt.state
        if state == "folded" and prompt.policy != "steer":
            raise Violation(f"{tag} has a run id and was folded")
        if state == "cancelled" and not any(stop.may_hit(prompt) for stop in self.stops_of(prompt)):
            raise Violation(f"{tag} was cancelled by nothing that was sent")

    def unsettled(self) -> list[Prompt]:
        """Return the prompts with a run id that were accepted and have not ended yet."""
        return [p for p in self.prompts.values() if p.named and p.accepted and not p.state]


def check_sequence(where: str, prompts: Sequence[Prompt]) -> None:
    """Raise if a prompt comes before one that was answered before it was even sent."""
    earliest, first = inf, None
    for prompt in reversed(prompts):
        if earliest < prompt.sent and first is not None:
            raise Violation(f"{where}: {prompt.tag} before {first.tag}, which was accepted earlier")
        if prompt.answered < earliest:
            earliest, first = prompt.answered, prompt
