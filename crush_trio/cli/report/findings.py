"""Findings: what `crush-trio doctor` has checked, a line each, with advice."""

from collections.abc import Iterable
from enum import Enum

from attrs import frozen
from rich.table import Table
from rich.text import Text

from crush_trio.cli.exits import explain
from crush_trio.cli.terminal.text import one_line
from crush_trio.errors import CrushError


class Level(Enum):
    """How serious a finding is: its mark and its colour."""

    OK = "✓", "green"
    WARN = "!", "yellow"
    FAIL = "✗", "red"


@frozen
class Finding:
    """One line of a report."""

    level: Level
    subject: str
    text: str
    advice: str = ""


def failed(subject: str, error: CrushError) -> Finding:
    """Return the finding that a check raised *error*."""
    return Finding(Level.FAIL, subject, *explain(error))


def report(findings: Iterable[Finding]) -> Table:
    """Return findings as a table, each with its advice below."""
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = finding.level.value
        text = Text(one_line(finding.text))
        if finding.advice:
            text.append(f"\n→ {one_line(finding.advice)}", "italic")
        table.add_row(Text(mark, style), Text(finding.subject, "bold"), text)
    return table
