"""Seeded bugs: each is found, each mended program passes, and the page shows the table."""

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.races import packages
from benchmarks.races.table import BUGS, Cell, about, measure, page, strategies
from crush_trio.testing.explore import PlaceFailure, cancel_everywhere, explore, find_violation

PAGE = Path(__file__).parents[2] / "docs" / "races.md"


@cache
def figures() -> str:
    return PAGE.read_text(encoding="utf-8").partition(report.BEGIN)[2].partition(report.END)[0]


def is_found(bug) -> bool:
    try:
        cancel_everywhere(bug.broken)
    except PlaceFailure:
        return True
    columns = strategies(100, 100)
    return any(columns[name](bug.broken).found for name in ("HoldBack(1)", "Random"))


@pytest.mark.explored
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_found_and_its_usual_order_passes(bug):
    assert find_violation(bug.broken, deviations=0) is None
    assert is_found(bug)


@pytest.mark.explored
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_nothing_is_found_without_the_bug(bug):
    assert len(explore(bug.fixed, limit=100).outcomes) == 1
    assert cancel_everywhere(bug.fixed).places


def test_the_page_has_a_row_and_a_sentence_for_every_bug():
    rows = [row.split(" | ")[0].removeprefix("| ") for row in figures().splitlines() if "|" in row]
    assert rows[2 : 2 + len(BUGS)] == [bug.name for bug in BUGS]
    assert about() in figures()
    assert f"|  | {' | '.join(strategies())} |" in figures()


def test_a_table_counts_what_was_found():
    table = {
        "one": {"a": Cell(True, 3, 0.5), "b": Cell(False, 10, 2.0)},
        "two": {"a": Cell(True, 1, 1.5), "b": Cell(True, 10, 2.0)},
    }
    assert page(table).splitlines() == [
        "|  | a | b |",
        "| --- | --- | --- |",
        "| one | 3 (500 ms) | - |",
        "| two | 1 (1.5 s) | 10 (2.0 s) |",
        "| **found of 2** | **2** | **1** |",
        "| time in total | 2.0 s | 4.0 s |",
        "| schedules per second | 2 | 5 |",
    ]


@pytest.mark.long
@pytest.mark.heavy
def test_the_table_is_as_the_page_says():
    """How many schedules a strategy needs does not depend on the machine, save where chance decides."""
    table = measure(schedules=500, samples=20)
    for name, cells in table.items():
        row = next(row for row in figures().splitlines() if row.startswith(f"| {name} | "))
        shown = dict(zip(strategies(), row.split(" | ")[1:], strict=True))
        for column in ("HoldBack(1)", "HoldBack(2)", "HoldBack(3)", "cancel_everywhere"):
            first = shown[column].partition(" (")[0].rstrip(" |")
            assert first == (str(cells[column].schedules) if cells[column].found else "-"), name


def test_packages_of_other_people_are_named_with_how_to_install_them():
    for path in Path(packages.__path__[0]).glob("[a-z]*.py"):
        source = path.read_text(encoding="utf-8")
        assert "`pip install " in source
        name = source.partition('PACKAGE = "')[2].partition('"')[0]
        assert f"### {name} " in PAGE.read_text(encoding="utf-8")
        assert name in (packages.__doc__ or "")


def test_what_is_not_installed_is_told(capsys):
    from benchmarks.races.packages.__main__ import main

    if importlib.util.find_spec("tricycle") is not None:
        pytest.skip("tricycle is installed")
    assert main(["tricycle"]) == 0
    assert "tricycle is not installed" in capsys.readouterr().out
