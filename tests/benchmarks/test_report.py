"""How a run is shown: for people, for programs, and between the markers of a page."""

import orjson
import pytest

from benchmarks.figures import (
    BYTES,
    COUNT,
    MS,
    RATE,
    TIMES,
    Figure,
    at_least,
    at_most,
    ratio_at_most,
)
from benchmarks.machine import Machine, this_machine
from benchmarks.report import (
    BEGIN,
    END,
    NoMarkers,
    Report,
    as_json,
    markdown,
    number,
    promise,
    replaced,
    text_table,
)

MACHINE = Machine(
    processor="P",
    cores=2,
    memory=2**34,
    system="Linux 6",
    python="3.11",
    load=0.1,
    packages={"trio": "0.35.0"},
)


def report(*figures, other=""):
    return Report(
        machine=MACHINE,
        day="2026-01-01",
        seconds=12.3,
        own="crush_trio",
        other=other,
        titles={"b": "Acceptance"},
        figures=figures,
        left_out=["(d) 500 clients: no time left"],
    )


def accepted(ours, limit):
    return Figure(
        workload="b",
        name="p50",
        unit=MS,
        ours=ours,
        theirs=(1.0, 1.0),
        promise=ratio_at_most(limit),
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.4567, MS, "0.457 ms"),
        (1234.0, MS, "1.23 s"),
        (151.4, RATE, "151/s"),
        (512, BYTES, "512 B"),
        (2048, BYTES, "2.0 KB"),
        (3 * 2**20, BYTES, "3.0 MB"),
        (0, COUNT, "0"),
        (0.333, TIMES, "0.33"),
    ],
)
def test_numbers_have_a_unit_that_fits(value, unit, text):
    assert number(value, unit) == text


def test_the_table_shows_spread_ratio_promise_and_what_was_left_out():
    table = text_table(report(accepted((2.0, 3.0), 3)))
    assert "2.5 ms (2 ms to 3 ms)" in table
    assert "ratio ≤ 3" in table
    assert "left out: (d) 500 clients" in table
    assert "0 promises missed" in table


def test_a_third_server_has_columns_of_its_own():
    other = "http://127.0.0.1:8765"
    row = Figure(workload="b", name="p50", unit=MS, ours=(2.0,), theirs=(1.0,), others=(4.0,))
    unknown = Figure(workload="b", name="CPU", unit=MS, ours=(2.0,))
    shown = markdown(report(row, unknown, other=other))
    assert f"|  | crush_trio | baseline | ratio | {other} | ratio | promise |  |" in shown
    assert "| p50 | 2 ms | 1 ms | 2.00 | 4 ms | 4.00 |  |  |" in shown
    assert "| CPU | 2 ms |  |  |  |  |  |  |" in shown
    assert other not in markdown(report(row))


def test_a_missed_promise_is_counted_and_marked():
    found = report(
        accepted((4.0, 4.0), 3),
        Figure(workload="b", name="v", unit=MS, ours=(1.0,), promise=at_most(2)),
    )
    assert [each.name for each in found.missed] == ["p50"]
    assert "**missed**" in markdown(found)


def test_a_page_gets_the_section_between_its_markers_and_keeps_the_rest():
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    once = replaced(page, markdown(report(accepted((1.0,), 3))))
    assert once.startswith(f"above\n{BEGIN}\n")
    assert once.endswith(f"{END}\nbelow\n")
    assert "old" not in once
    assert replaced(once, "new") == f"above\n{BEGIN}\n\nnew\n{END}\nbelow\n"


def test_a_page_without_markers_is_refused():
    with pytest.raises(NoMarkers):
        replaced(f"{END}\n{BEGIN}", "new")


def test_json_has_every_round():
    found = orjson.loads(orjson.dumps(as_json(report(accepted((2.0, 3.0), 3)))))
    [figure] = found["figures"]
    assert figure["own"] == [2.0, 3.0]
    assert (figure["ratio"], figure["limit"], figure["met"]) == (2.5, 3, True)
    assert found["machine"]["cores"] == 2


def test_this_machine_can_be_described():
    assert this_machine().python in this_machine().line()


def test_a_promise_of_a_lowest_value_says_so():
    runs = Figure(workload="b", name="runs", unit=RATE, ours=(90.0,), promise=at_least(100))
    assert promise(runs) == "≥ 100/s"
    assert report(runs).missed == [runs]
