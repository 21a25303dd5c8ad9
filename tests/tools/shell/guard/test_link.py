"""What a guard reports, however its lines are cut on the way."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.tools.shell.guard.link import GuardEnd, GuardOutcome, GuardReport

RUN = b"forked 4711\nstarted\nended 256 4712,4713 4714\n"


def read(*pieces):
    report = GuardReport()
    for piece in pieces:
        report.feed(piece)
    return report


@given(st.lists(st.integers(0, len(RUN)), max_size=5).map(sorted))
def test_a_report_may_come_in_any_pieces(cuts):
    ends = [0, *cuts, len(RUN)]
    report = read(*(RUN[a:b] for a, b in pairwise(ends)))
    assert (report.leader, report.started, report.failure) == (4711, True, None)
    assert report.end == GuardEnd(GuardOutcome.ENDED, 256, (4712, 4713), (4714,))
    assert report.over


@given(st.integers(0, len(RUN) - 1))
def test_a_report_is_not_over_before_its_last_line_is_complete(cut):
    assert not read(RUN[:cut]).over


def test_a_command_that_cannot_be_executed_has_no_process():
    report = read(b"forked 4711\nfailed 2\n")
    assert (report.leader, report.failure, report.over) == (None, 2, True)


def test_names_that_the_command_made_come_before_the_end():
    report = read(b"forked 4711\nstarted\nmade 0,2\nended 0 - -\n")
    assert (report.made, report.over) == ((0, 2), True)


def test_a_withdrawn_command_was_stopped_and_leaves_nothing():
    report = read(b"withdrawn\n")
    assert report.end == GuardEnd(GuardOutcome.STOPPED)
    assert report.over


@pytest.mark.parametrize(
    "line",
    [b"forked 0", b"forked 1", b"forked -1", b"forked x", b"gone 0 - -", b"ended x - -", b"\xff"],
)
def test_what_is_no_report_says_nothing(line):
    report = read(line + b"\n")
    assert (report.leader, report.started, report.failure, report.end) == (None, False, None, None)
