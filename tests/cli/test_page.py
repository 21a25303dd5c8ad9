"""docs/cli.md is true: its tables are compared with the program."""

import re
from pathlib import Path

import click
import pytest

from crush_trio.cli.exits import ExitCode
from crush_trio.cli.main import COMMANDS, cli
from crush_trio.cli.report.plain import _MESSAGE_LINES, FORMAT_VERSION
from tests.cli.report import test_reporter

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def rows(heading):
    """Return the rows of the table that begins with the column *heading*, as their cells."""
    lines = PAGE.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line[1:-1].split(" | ")])
    return found


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_every_command_is_on_the_page():
    assert {names(row[0])[0] for row in rows("Command")} == set(COMMANDS)


@pytest.mark.parametrize(
    ("command", "heading"), [("run", "Option"), ("serve", "Option of `serve`")]
)
def test_every_option_of_run_and_of_serve_is_on_the_page(command, heading):
    listed = {name for row in rows(heading) for name in names(row[0])}
    options = {
        name
        for each in cli.get_command(click.Context(cli), command).params
        if isinstance(each, click.Option)
        for name in each.opts
    }
    assert listed == options


def test_every_exit_code_is_on_the_page():
    assert [int(row[0]) for row in rows("Code")] == [code.value for code in ExitCode]


def test_the_lines_of_a_stream_have_the_keys_that_the_page_names():
    told = {names(row[0])[0]: set(names(row[1])) for row in rows("Type")}
    first, _, last = test_reporter.reported(stream=True)
    assert set(first) - {"type"} <= told["start"]
    assert set(last) - {"type"} <= told["end"]
    assert f"`format` ({FORMAT_VERSION})" in PAGE
    pieces = [case for case in test_reporter.PIECES if case[1] is not None]
    for _, line in pieces:
        assert set(line) - {"type"} <= told[line["type"]], line["type"]
    assert set(told) == {"start", "end", "asked", *(line["type"] for _, line in pieces)}
    assert set(_MESSAGE_LINES.values()) <= set(told)
