"""The story of one schedule: which task did what, in which order, and where it went wrong.

`explain` runs a scenario once more under the schedule that a token names and records each step: where
the task continued and where it waited next, whom it started and woke, what was cancelled and raised.
Only this run is recorded, so that exploring stays as fast as it is.

Invariant: a story tells what happened in the run that was recorded, and nothing that was guessed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.testing.explore.places import Place, shorten
from crush_trio.testing.explore.recorder import Recorder, Step
from crush_trio.testing.explore.shrink import Scenario, shrunk
from crush_trio.testing.explore.walk import ExplorerBroken, Walk

LINES: Final = 40
"""At most how many lines the timeline of a story has, unless asked otherwise."""

_NOTES: Final = 4
"""How many of the starts, wake-ups and cancels of a line are told."""


@frozen(kw_only=True)
class Story:
    """What happened under one schedule; its text is for people."""

    token: str
    """The schedule that is told."""
    steps: Sequence[Step]
    """What the tasks did, in order."""
    failure: Exception | None
    """What the scenario raised, or for what it was stopped; None if it passed."""

    @property
    def first_bad_step(self) -> Step | None:
        """The step in which the exception was raised, or the last one before the scenario was stopped."""
        return next((step for step in self.steps if step.bad), None)

    def text(self, lines: int | None = LINES) -> str:
        """Return the story; if the timeline is longer than *lines*, its dull parts are folded."""
        return "\n".join([self._heading(), *_timeline(self.steps, lines), *self._ending()])

    __str__ = text

    def _heading(self) -> str:
        deviations = sum(step.instead_of is not None for step in self.steps)
        tasks = len({step.task for step in self.steps})
        counts = (
            f"{_count(tasks, 'task')}, {_count(len(self.steps), 'step')}, "
            f"{_count(deviations, 'deviation')} from the usual order"
        )
        return f"What happened under schedule {self.token} ({counts}):"

    def _ending(self) -> Iterator[str]:
        bad = self.first_bad_step
        if self.failure is None:
            yield "The scenario passes under this schedule."
        elif bad is not None:
            place = bad.raised or bad.end or bad.begin
            where = "" if place is None else f" at {place}: {place.source}"
            yield f"First bad step: {bad.number}, {bad.task}{where}"
            before = [step for step in self.steps[: bad.number] if step.instead_of]
            if before:
                last = before[-1]
                yield (
                    f"Last deviation before it: step {last.number}, {last.task} ran; "
                    f"the usual order has {last.instead_of} there."
                )


def explain(
    scenario: Scenario, token: str, *, shrink: bool = True, max_steps: int = 10_000
) -> Story:
    """Tell what *scenario* does under the schedule that *token* names.

    If it fails, the schedule is first reduced to the fewest deviations that still make it fail in the
    same way, in a bounded number of runs; the story's `token` names what is told. `shrink=False`
    tells the schedule as it is. Raises what `replay` raises for a token that does not fit.

    ```python
    print(explain(scenario, "x1-3.1-17.2"))
    ```
    """
    story = _record(scenario, token, max_steps)
    if not shrink or story.failure is None:
        return story
    less, _ = shrunk(scenario, token, story.failure, max_steps=max_steps)
    return story if less == token else _record(scenario, less, max_steps)


def _record(scenario: Scenario, token: str, max_steps: int) -> Story:
    recorder = Recorder()
    walk = Walk.from_token(token, max_steps=max_steps, observer=recorder, label=recorder.label)
    failure = None
    try:
        walk.run(scenario)
    except ExplorerBroken:
        raise
    except Exception as exc:  # noqa: BLE001 - it is what the story is about
        failure = exc
        recorder.blame(exc)
        shorten(exc)
    return Story(token=token, steps=recorder.steps, failure=failure)


def _timeline(steps: Sequence[Step], limit: int | None) -> Iterator[str]:
    """Yield the lines of a timeline; what comes after the bad step is one line."""
    bad = next((step.number for step in steps if step.bad), len(steps))
    rows = _rows(steps[:bad], joined=False)
    if limit is not None and len(rows) > limit:
        rows = _rows(steps[:bad], joined=True)
    width = max((len(row[0].task) for row in rows), default=0)
    names = _file_names(steps)
    at = 0
    for kept in _kept(rows, limit):
        if at < kept:
            yield _fold(rows[at:kept])
        yield _line(rows[kept], width, names)
        at = kept + 1
    if bad < len(steps):
        yield f"     … {_count(len(steps) - bad, 'more step')} until the scenario ended"


def _rows(steps: Sequence[Step], *, joined: bool) -> list[list[Step]]:
    """Return *steps* in rows of one line each: those of one task in a row, or only where it stays put."""
    rows: list[list[Step]] = []
    for step in steps:
        last = rows[-1][-1] if rows else None
        stays = step.begin is not None and step.begin == step.end and not step.notes
        same = last is not None and last.task == step.task and not last.cancelled
        if same and (stays or joined) and not step.remarkable:
            rows[-1].append(step)
        else:
            rows.append([step])
    return rows


def _kept(rows: Sequence[Sequence[Step]], limit: int | None) -> Sequence[int]:
    """Return the rows that are told: those next to remarkable ones, and of these the latest."""
    marks = [n for n, row in enumerate(rows) if row[0].remarkable] or [len(rows) - 1]
    order = sorted(range(len(rows)), key=lambda n: (min(abs(n - m) for m in marks), -n))
    count = len(rows) if limit is None else min(limit, len(rows))
    while True:
        kept = sorted(order[:count])
        folds = sum(b - a > 1 for a, b in zip([-1, *kept], kept, strict=False))
        if limit is None or count + folds <= limit or count <= 1:
            return kept
        count -= 1


def _fold(rows: Sequence[Sequence[Step]]) -> str:
    tasks = list(dict.fromkeys(row[0].task for row in rows))
    shown = ", ".join(tasks[:3]) + (", …" if len(tasks) > 3 else "")
    return f"     … {_count(sum(map(len, rows)), 'step')} of {shown}"


def _line(row: Sequence[Step], width: int, names: dict[str, str]) -> str:
    first, last = row[0], row[-1]
    mark = "!" if first.bad else ">" if first.instead_of else " "
    what = f"ahead of {first.instead_of}: " if first.instead_of else ""
    what += "begins" if first.begin is None else f"{names[first.begin.file]}:{first.begin.line}"
    if first.bad and first.raised is not None:
        what += f" → {_there(first.begin, first.raised, names)}"
    elif last.end is not None:
        what += f" → {_there(first.begin, last.end, names)}"
    else:
        what += " → ends"
    if len(row) > 1:
        what += f"  ({len(row)} steps)"
    notes = list(dict.fromkeys(note for step in row for note in step.notes))
    if len(notes) > _NOTES:
        notes = [*notes[:_NOTES], f"and {len(notes) - _NOTES} more"]
    told = f"  [{'; '.join(notes)}]" if notes else ""
    return f"{mark}{first.number:4} {first.time:>6.4g}s  {first.task:{width}}  {what}{told}"


def _there(begin: Place | None, place: Place, names: dict[str, str]) -> str:
    same = begin is not None and begin.file == place.file
    return f"{'' if same else names[place.file] + ':'}{place.line}  {place.source}"


def _file_names(steps: Sequence[Step]) -> dict[str, str]:
    """Return how each file is called: by its last name, unless two have the same."""
    places = [place for step in steps for place in (step.begin, step.end, step.raised) if place]
    files = dict.fromkeys(place.file for place in places)
    bare = [Path(file).name for file in files]
    return {
        file: name if bare.count(name) == 1 else str(Path(file))
        for file, name in zip(files, bare, strict=True)
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
