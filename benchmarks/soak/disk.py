"""The final check: compares the database with the ledger and with what readers were sent."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from attrs import define, frozen

from benchmarks.soak.faults import DATABASE
from benchmarks.soak.ledger import ENDED, Ledger, Prompt, Talk, Violation, check_sequence, tags_of
from benchmarks.soak.model import answer_to
from benchmarks.soak.readers import Reader


@frozen(kw_only=True)
class Row:
    """A run on disk."""

    id: str
    tag: str
    run_id: str | None
    session: str
    state: str
    prompt: str
    text: str
    folded_into: str | None
    began: bool
    placed: bool
    """Whether the place of its ending among the events is stored."""


@define(eq=False)
class Disk:
    """The runs of one workspace as they are on disk."""

    rows: dict[str, Row]
    user_order: dict[str, list[str]]
    """The tags of the user messages of each session, in their order, without those withdrawn."""

    def by_tag(self) -> dict[str, list[Row]]:
        """Return the rows of each prompt."""
        found: dict[str, list[Row]] = {}
        for row in self.rows.values():
            found.setdefault(row.tag, []).append(row)
        return found


def read_disk(workspace: Path) -> Disk:
    """Read the database of *workspace*; its server has stopped."""
    with closing(sqlite3.connect(f"file:{workspace / DATABASE}?mode=ro", uri=True)) as connection:
        found = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise Violation(f"the database of {workspace.name} is damaged: {found}")
        rows = {
            row[0]: Row(
                id=row[0],
                tag=(tags_of(row[4]) or [""])[0],
                run_id=row[1],
                session=row[2],
                state=row[3],
                prompt=row[4],
                text=row[5],
                folded_into=row[6],
                began=row[7] is not None,
                placed=row[8] is not None,
            )
            for row in connection.execute(
                "SELECT id, run_id, session_id, state, prompt, text, folded_into, started_at, "
                "ending_seq FROM runs WHERE kind = 'prompt'"
            )
        }
        order: dict[str, list[str]] = {}
        for session, data in connection.execute(
            "SELECT session_id, data FROM messages JOIN parts ON messages.id = parts.message_id "
            "WHERE role = 'user' AND idx = 0 AND NOT withdrawn ORDER BY session_id, seq"
        ):
            order.setdefault(session, []).extend(tags_of(data.partition('"}')[0])[:1])
    return Disk(rows, order)


@define(eq=False)
class Audit:
    """Checks everything that can only be checked after the last stop."""

    ledger: Ledger
    disk: Disk
    workspace: int
    endings: Counter[str]

    def check(self, readers: Sequence[Reader]) -> None:
        """Raise `Violation` for the first broken promise."""
        by_tag = self.disk.by_tag()
        for row in self.disk.rows.values():
            self._check_row(row)
        for prompt in self.ledger.prompts.values():
            if prompt.talk.workspace == self.workspace:
                self._check_prompt(prompt, by_tag.get(prompt.tag, []))
        for reader in readers:
            self._check_reader(reader)
        for talk in self.ledger.talks.values():
            if talk.ordered and talk.workspace == self.workspace:
                self._check_order(talk)

    def _check_row(self, row: Row) -> None:
        self.endings[row.state] += 1
        if row.state not in ENDED:
            raise Violation(f"{row.tag} is {row.state} on disk after the last stop")
        if row.tag not in self.ledger.prompts:
            raise Violation(f"a run on disk that was never sent: {row}")
        unseen = row.state in {"cancelled", "errored"} and not row.began
        if unseen and row.tag in self.ledger.shown:
            raise Violation(f"{row.tag} was {row.state} before it began, and a model has seen it")
        if row.state == "completed":
            self._check_text(row)

    def _check_text(self, row: Row) -> None:
        """Check that a completed run has the answer to its own prompt, or to the last one folded in."""
        own = self.ledger.prompts[row.tag].texts
        folded = [r.prompt for r in self.disk.rows.values() if r.folded_into == row.id]
        if row.text.strip() not in {answer_to(text).strip() for text in (*own, *folded)}:
            raise Violation(f"{row.tag} was answered with something else: {row.text[:200]!r}")

    def _check_prompt(self, prompt: Prompt, rows: list[Row]) -> None:
        tag = prompt.tag
        if len(rows) > 1:
            raise Violation(f"{tag} is on disk {len(rows)} times")
        if prompt.accepted and not rows:
            raise Violation(f"{tag} was accepted and is not on disk")
        if prompt.refused and rows:
            raise Violation(f"{tag} was refused ({prompt.verdict}) and is on disk: {rows[0]}")
        if not rows:
            if tag in self.ledger.shown:
                raise Violation(f"{tag} was in a model request and is not on disk")
            return
        [row] = rows
        if prompt.named and row.run_id != tag:
            raise Violation(f"{tag} has another run id on disk: {row.run_id}")
        if prompt.state and prompt.state != row.state:
            raise Violation(f"{tag}: the stream said {prompt.state}, the disk {row.state}")
        if row.prompt not in {*prompt.texts}:
            raise Violation(f"{tag} has another text on disk: {row.prompt!r}, not {prompt.texts}")
        if row.state == "cancelled" and not any(
            stop.may_hit(prompt) for stop in self.ledger.stops_of(prompt)
        ):
            raise Violation(f"{tag} was cancelled by nothing that was sent")

    def _check_reader(self, reader: Reader) -> None:
        name, rows = f"a reader ({reader.habit.name})", self.disk.rows
        for key, told in reader.endings.items():
            if key not in rows:
                raise Violation(f"{name} was told of a run that is not on disk: {key} {told.state}")
            if rows[key].state != told.state:
                tag = rows[key].tag
                raise Violation(f"{name} was told {tag} {told.state}, disk: {rows[key].state}")
        for key in reader.again:
            row = rows[key]
            if row.placed and row.state != "interrupted":
                raise Violation(f"{name} was told that {row.tag} {row.state} by two starts")
        if not reader.promised:
            return
        for key, row in rows.items():
            if self.ledger.prompts[row.tag].sent > reader.since and key not in reader.endings:
                raise Violation(f"{name} was never told that {row.tag} {row.state} ({key})")

    def _check_order(self, talk: Talk) -> None:
        """Check that prompts were asked, and stored, in the order of acceptance."""
        asked = [p for p in talk.prompts if p.named and p.asked]
        asked.sort(key=lambda prompt: prompt.asked[0])
        check_sequence(f"the model was asked in {talk.id}", asked)
        order = self.disk.user_order.get(talk.id, [])
        stored = [self.ledger.prompts[tag] for tag in order]
        check_sequence(f"stored in {talk.id}", [p for p in stored if p.named])
