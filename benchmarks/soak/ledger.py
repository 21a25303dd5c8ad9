"""The ledger of a soak: the prompts, and what the server asked its model and left undone.

The part that needs only a server's answers and streams is `crush_trio.testing.torture.ledger`. Plain data,
no I/O. A contradiction to a promise raises `Violation` at once. Times are those of `time.monotonic`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from attrs import define, field
from typing_extensions import override

from crush_trio.testing.torture import ledger
from crush_trio.testing.torture.ledger import ENDED, Prompt, Stop, Talk, Violation, check_sequence

__all__ = [
    "CANCEL_LIMIT",
    "ENDED",
    "IN_FLIGHT",
    "Ledger",
    "Prompt",
    "Stop",
    "Talk",
    "Violation",
    "check_sequence",
    "tags_of",
]

CANCEL_LIMIT: Final = 60.0
"""Seconds that a cancelled run may take to end, disk faults and a busy machine included."""

IN_FLIGHT: Final = 5.0
"""Seconds that a request to the model may be on its way when the cancel of its run is answered."""

_TAG: Final = re.compile(r"#(\S+)")


def tags_of(text: str) -> list[str]:
    """Return the tags in *text*: the names of the prompts it was made from."""
    return _TAG.findall(text)


@define(eq=False)
class Ledger(ledger.Ledger):
    """All prompts of a soak."""

    shown: set[str] = field(factory=set, init=False)
    """The tags that were in a request to a model, whether as its prompt or before that."""
    shutdowns: list[Stop] = field(factory=list, init=False)
    """The stops of the whole server, which cancel everything."""
    troubles: list[Stop] = field(factory=list, init=False)
    """The times in which the disk did not work: only then may a run fail."""
    _cancelled: dict[str, Prompt] = field(factory=dict, init=False)

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

    @override
    def end(self, tag: str, state: str, now: float) -> None:
        """Check an ending that a stream told, of a run that has a caller's id."""
        self._cancelled.pop(tag, None)
        super().end(tag, state, now)

    @override
    def check_state(self, prompt: Prompt) -> None:
        """Raise if *prompt* ended in a way that nothing explains, the model and the disk included."""
        super().check_state(prompt)
        tag, state = prompt.tag, prompt.state
        held = prompt.text.startswith("hold") and not prompt.shared
        if state == "completed" and held:
            raise Violation(f"{tag} completed, and the model never answered it in full")
        if state == "completed" and not prompt.asked:
            raise Violation(f"{tag} completed, and the model was never asked")
        if state == "errored" and not any(trouble.may_hit(prompt) for trouble in self.troubles):
            raise Violation(f"{tag} errored, and nothing was wrong with the disk")

    @override
    def stops_of(self, prompt: Prompt) -> Iterator[Stop]:
        """Return everything that can have cancelled *prompt*."""
        yield from super().stops_of(prompt)
        yield from self.shutdowns

    def check_due(self, now: float) -> None:
        """Raise if a cancelled run should have ended by now."""
        for prompt in self._cancelled.values():
            if now > prompt.due:
                raise Violation(f"{prompt.tag} was cancelled and did not end in {CANCEL_LIMIT} s")
