"""What a cluster carries: the tables of `docs/scale.md`, and the arithmetic behind them."""

import json

import pytest

from benchmarks.scale.capacity import (
    SHARE,
    SIZES,
    Size,
    answer,
    answers_each_second,
    carried,
    need,
    sessions_of,
)
from benchmarks.scale.constants import Constants, Cost
from benchmarks.scale.tables import PAGE, between_markers, page, section


def cost(number):
    names = ("transactions", "writes", "wal", "stored", "database", "nodes")
    return Cost(**dict.fromkeys(names, number))


def constants(**changed):
    costs = dict.fromkeys(("node", "lease", "session", "run", "forwarded"), cost(0.0))
    return Constants(
        **{
            "machine": "M",
            "day": "2026-01-01",
            "postgres": "18",
            "connections": 6,
            **costs,
            "run_together": cost(0.01),
            "token": cost(0.0001),
            "reader": 0.0,
            "reader_forwarded": 0.0,
            **changed,
        }
    )


def test_the_tables_of_the_page_are_computed_from_the_constants_that_are_kept():
    assert between_markers(PAGE.read_text("utf-8")) == section(Constants.load())


def test_constants_are_kept_as_they_were(tmp_path):
    kept = tmp_path / "constants.json"
    made = constants(token=cost(0.5), reader=0.25)
    made.save(kept)
    assert Constants.load(kept) == made
    assert json.loads(kept.read_bytes())["reader"] == 0.25


def test_a_page_gets_the_tables_of_other_constants():
    other = constants()
    assert between_markers(page(other, PAGE.read_text("utf-8"))) == section(other)


def test_an_answer_is_a_run_and_its_tokens():
    assert answer(constants()).database == pytest.approx(0.01 + 500 * 0.0001)
    assert answers_each_second(10) == 1  # each takes ten seconds


def test_a_database_carries_as_many_runs_as_half_of_its_processors_allow():
    found = carried(constants(), Size(cores=8, connections=100))
    assert found.runs == pytest.approx(8 * SHARE / 0.01)
    assert found.nodes_connected == 16
    assert found.nodes_busy == 8  # an answer costs both the same here, and both are used by half


def test_databases_are_as_many_as_processors_or_connections_need():
    size = Size(cores=16, connections=12)
    assert need(constants(), 1000, size).databases == 1
    by_processors = need(constants(token=cost(0.01)), 100_000, Size(cores=16, connections=10**6))
    assert by_processors.databases == by_processors.cores // (16 * SHARE) + 1
    by_connections = need(constants(), 10_000, size)
    assert by_connections.databases * 12 >= by_connections.nodes * 6


@pytest.mark.parametrize("nodes", [10, 1000])
def test_so_many_nodes_carry_so_many_sessions_and_no_thousand_more(nodes):
    found, size = constants(), SIZES[2]
    sessions = sessions_of(found, nodes, size)
    assert need(found, sessions, size).nodes <= nodes < need(found, sessions + 1000, size).nodes


def test_what_idle_nodes_do_is_taken_off_and_nothing_is_below_zero():
    assert cost(3.0).less(cost(1.0), 2) == cost(1.0)
    assert cost(1.0).less(cost(1.0), 2) == cost(0.0)
