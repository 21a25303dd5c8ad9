"""The page about operations is true: its tables are compared with what is in the code.

Its programs are run with those of the other pages, in `tests/test_docs.py`.
"""

import ast
import configparser
import re
from importlib import import_module
from pathlib import Path

import attrs
import pytest

from crush_trio.agent import otel
from crush_trio.limits import LIMIT_INFO, shown
from crush_trio.server import logging
from crush_trio.server.status import STATUS
from crush_trio.testing.server.server import client_id, open_test_server
from tests.server.scraping import scrape
from tests.server.test_prometheus import open_busy_server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
SOURCES = [path.read_text("utf-8") for path in sorted((ROOT / "crush_trio").rglob("*.py"))]


def rows(heading):
    """Return the rows of the table that begins with the column *heading*."""
    lines = PAGE.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            return found
        name, *cells = (cell.strip() for cell in line[1:-1].split("|"))
        found.append([name.strip("`"), *cells])
    return found


def logged():
    """Return every event of the code with the level it is logged at."""
    return {
        (
            node.args[0].value.partition(": ")[0],
            {"exception": "error"}.get(node.func.attr, node.func.attr),
        )
        for source in SOURCES
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


@pytest.mark.heavy
def test_the_events_of_the_page_are_logged_at_the_level_it_says():
    named = {(event, level) for event, level, _ in rows("Event")}
    assert len(named) > 15
    assert named - logged() == set()


def test_the_options_of_the_page_are_those_of_the_command():
    words = {option: set(re.findall(r"`(\w+)`", text)) for option, text in rows("Option")}
    assert words["--log-format"] == {form.value for form in logging.LogFormat}
    assert words["--log-level"] == {level.value for level in logging.LogLevel}


async def test_there_is_a_row_for_every_series_and_no_other():
    async with open_busy_server() as (server, _):
        families = (await scrape(server)).families.values()
    served = {family.name + "_total" * (family.type == "counter"): family for family in families}
    told = {name: (kind, labels) for name, kind, labels, *_ in rows("Series")}
    assert set(told) == set(served)
    for name, (kind, labels) in told.items():
        found = {label for sample in served[name].samples for label in sample.labels}
        named = set(re.findall(r"`(\w+)`", labels.partition(":")[0]))
        assert (kind, named) == (served[name].type, found - {"le"}), name


def resolve(name):
    """Return the value of a constant, or the default of a field, below `crush_trio`."""
    module, _, attribute = f"crush_trio.{name}".rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError:
        module, _, cls = module.rpartition(".")
        return attrs.fields_dict(getattr(import_module(module), cls))[attribute].default


@pytest.mark.parametrize(("name", "value"), [row[:2] for row in rows("Limit")])
def test_a_limit_has_the_value_that_the_page_says(name, value):
    assert resolve(name) == float(value)


@pytest.mark.parametrize("name", [row[0] for row in rows("Variable")])
def test_a_variable_of_the_page_is_one_that_the_code_knows(name):
    assert any(f'"{name}"' in source for source in SOURCES)


def test_every_variable_of_our_own_is_on_the_page():
    known = {name for source in SOURCES for name in re.findall(r'"(CRUSH_[A-Z_]+)"', source)}
    assert known <= {row[0] for row in rows("Variable")}


@pytest.mark.parametrize(("code", "status"), [row[:2] for row in rows("Code")])
def test_a_code_of_the_page_has_the_status_it_says(code, status):
    assert STATUS[code] == int(status)


def test_the_attributes_of_the_page_are_those_of_the_spans():
    source = (ROOT / "crush_trio" / "agent" / "otel.py").read_text("utf-8")
    section = PAGE.partition("## Traces")[2].partition("## Deployment")[0]
    named = set(re.findall(r"`((?:gen_ai|crush_trio|error)\.[a-z_.]+)`", section))
    assert len(named) > 15
    assert {name for name in named if f'"{name}"' not in source} == set()
    assert otel.CAPTURE_VARIABLE in section


def test_the_unit_is_one_that_systemd_can_read():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(re.search(r"```ini\n(.*?)```", PAGE, re.DOTALL)[1])
    program = unit["Service"]["ExecStart"].split()
    assert program[1] == "serve"
    options = [word for word in program if word.startswith("--")]
    assert [word for word in options if not any(f'"{word}"' in text for text in SOURCES)] == []


async def test_the_route_that_shows_what_a_run_waits_for_exists():
    async with open_test_server() as server:
        place = await server.create(client_id(1))
        assert "/v1/workspaces/{wid}/tasks" in PAGE
        assert (await place.request("GET", "/tasks")).status == 200


def test_the_page_has_a_row_for_every_size_limit_with_its_default_code_and_status():
    told = {
        name: (default, code.strip("`"), status)
        for name, default, _, _, code, status in rows("Named limit")
    }
    assert told == {
        each.name: (shown(each.name, each.default), each.code, refused_with(each.code))
        for each in LIMIT_INFO.values()
    }


def refused_with(code):
    """Return the status that a client sees; a run that fails is no answer to a request."""
    return "" if not code or code == "answer_too_long" else str(int(STATUS[code]))
