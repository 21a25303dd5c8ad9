"""Stop receipts for people."""

import pytest

from crush_trio.cli.report.reporter import merged, receipt_table, short, summary
from crush_trio.wire.answers import HitView, ReceiptView
from crush_trio.wire.runs import RunState
from tests.cli.drawing import drawn


def hit(**more):
    given = {"state": RunState.ACTIVE, "ended": RunState.CANCELLED, "seconds": 0.021, **more}
    return HitView(id="0123456789ab", session_id="fedcba987654", **given)


@pytest.mark.parametrize(
    ("hits", "complete", "sentence"),
    [
        ([], True, "Nothing was running."),
        ([hit()], True, "Stopped 1 run in 0.02 s; nothing is left running."),
        (
            [hit(processes=(17, 18)), hit(seconds=1.5)],
            True,
            "Stopped 2 runs in 1.50 s; 2 processes stopped with it; nothing is left running.",
        ),
        (
            [hit(ended=RunState.COMPLETED)],
            True,
            "Stopped 0 runs in 0.02 s; 1 run ended otherwise; nothing is left running.",
        ),
        (
            [hit(ended=None, seconds=None)],
            False,
            "Stopped 0 runs in 0.00 s; something is still running.",
        ),
        (
            [hit(left=(17,))],
            False,
            "Stopped 1 run in 0.02 s; could not stop process 17; something is still running.",
        ),
    ],
)
def test_a_receipt_is_one_sentence(hits, complete, sentence):
    assert summary(ReceiptView(complete=complete, hits=tuple(hits))) == sentence


def test_a_receipt_is_a_table():
    receipt = ReceiptView(
        complete=True, hits=(hit(processes=(17,)), hit(ended=None, run_id="mine"))
    )
    head, first, second = drawn(receipt_table(receipt), 100)
    assert head.split() == ["Run", "Session", "Was", "Ended", "After", "Processes", "stopped"]
    assert first.split() == ["01234567", "fedcba98", "active", "cancelled", "0.02", "s", "17"]
    assert second.split() == ["mine", "fedcba98", "active", "still", "running", "0.02", "s", "none"]


def test_what_could_not_be_stopped_is_in_the_table():
    receipt = ReceiptView(complete=False, hits=(hit(processes=(16,), left=(17, 18)),))
    _, line = drawn(receipt_table(receipt), 100)
    assert line.split()[-4:] == ["16", "left:", "17,", "18"]


def test_several_receipts_are_one():
    whole = merged([ReceiptView(complete=True, hits=(hit(),)), ReceiptView(complete=False)])
    assert whole == ReceiptView(complete=False, hits=(hit(),))
    assert merged([]).complete


def test_ids_are_shortened_to_what_is_enough():
    assert short("0123456789") == "01234567"
