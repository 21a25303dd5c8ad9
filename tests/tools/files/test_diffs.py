"""A difference is always true; it may be coarse, but it is never slow."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.tools.files import text as diffs
from crush_trio.tools.files.text import LineEdit, difference, edits_between, lines_of

CHECKS = settings(derandomize=True, deadline=None, database=None)

TEXTS = st.text("ab\n", max_size=30)
EFFORTS = st.sampled_from([0, 4, 100_000])


def applied(edits, old, new):
    result, at = [], 0
    for edit in edits:
        result += [*old[at : edit.old_start], *new[edit.new_start : edit.new_end]]
        at = edit.old_end
    return [*result, *old[at:]]


def patched(old, diff):
    """Apply a unified diff, believing nothing of what it says about the old text."""
    source, result, at = lines_of(old), [], 0
    rows = diff.splitlines(keepends=True)[2:]
    for n, row in enumerate(rows):
        bare = n + 1 < len(rows) and rows[n + 1].startswith("\\")
        text = row[1:].removesuffix("\n") if bare else row[1:]
        if row.startswith("@@"):
            start, size = (int(each) for each in row.split()[1][1:].split(","))
            begin = start - bool(size)
            result += source[at:begin]
            at = begin
        elif row.startswith(("-", " ")):
            assert source[at] == text
            result += [text] if row.startswith(" ") else []
            at += 1
        elif row.startswith("+"):
            result.append(text)
    return "".join([*result, *source[at:]])


@CHECKS
@given(TEXTS, TEXTS, EFFORTS)
def test_the_edits_turn_one_text_into_the_other(old, new, effort):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffs, "MAX_LINE_PAIRS", effort)
        found = difference(old, new)
    assert "".join(applied(found.edits, found.old, found.new)) == new
    assert len(found.new) - len(found.old) == found.additions - found.removals
    assert bool(found.edits) == (old != new)


@CHECKS
@given(TEXTS, TEXTS, EFFORTS)
def test_edits_are_in_order_and_something_unchanged_is_between_them(old, new, effort):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffs, "MAX_LINE_PAIRS", effort)
        edits = edits_between(lines_of(old), lines_of(new))
    assert not any(edit.empty for edit in edits)
    for one, next_one in pairwise(edits):
        assert one.old_end < next_one.old_start
        assert one.new_end < next_one.new_start


@CHECKS
@given(st.text("abc\n", max_size=80), st.text("abc\n", max_size=80))
def test_a_unified_diff_can_be_applied(old, new):
    diff = difference(old, new).unified("file")
    assert patched(old, diff) == new


@CHECKS
@given(TEXTS)
def test_lines_put_together_are_the_text(text):
    assert "".join(lines_of(text)) == text
    assert all(line.index("\n") == len(line) - 1 for line in lines_of(text)[:-1])


def test_a_unified_diff_looks_as_everybody_expects():
    old = "".join(f"{n}\n" for n in range(1, 21))
    new = old.replace("3\n", "three\n", 1).replace("20\n", "20")
    assert difference(old, new).unified("some/file").splitlines() == [
        *("--- a/some/file", "+++ b/some/file"),
        *("@@ -1,6 +1,6 @@", " 1", " 2", "-3", "+three", " 4", " 5", " 6"),
        *("@@ -17,4 +17,4 @@", " 17", " 18", " 19", "-20", "+20", "\\ No newline at end of file"),
    ]


@pytest.mark.parametrize(("between", "hunks"), [(0, 1), (1, 1), (6, 1), (7, 2), (20, 2)])
def test_changes_whose_surroundings_meet_are_shown_together(between, hunks):
    lines = [f"{n}\n" for n in range(30)]
    changed = [*lines]
    changed[3] = changed[4 + between] = "changed\n"
    old, new = "".join(lines), "".join(changed)
    diff = difference(old, new).unified("file")
    assert diff.count("@@ -") == hunks
    assert patched(old, diff) == new


def test_a_new_file_is_all_additions():
    found = difference("", "a\nb\n")
    assert (found.additions, found.removals) == (2, 0)
    assert found.unified("f").splitlines()[2:] == ["@@ -0,0 +1,2 @@", "+a", "+b"]


def test_equal_texts_have_no_diff():
    assert difference("a\n", "a\n").unified("f") == ""


def test_a_line_feed_at_the_end_is_a_change():
    found = difference("a", "a\n")
    assert (found.additions, found.removals) == (1, 1)


@pytest.mark.heavy
def test_far_apart_changes_in_a_large_file_are_still_small():
    lines = [f"line {n}\n" for n in range(50_000)]
    changed = [*lines]
    changed[10] = changed[25_000] = "changed\n"
    changed[49_990:49_990] = ["one more\n"]
    found = edits_between(lines, changed)
    assert found == [
        LineEdit(10, 11, 10, 11),
        LineEdit(25_000, 25_001, 25_000, 25_001),
        LineEdit(49_990, 49_990, 49_990, 49_991),
    ]


def test_large_texts_that_repeat_themselves_are_not_compared_line_by_line():
    old, new = ["a\n", "b\n"] * 20_000, ["b\n", "c\n"] * 20_000
    [edit] = edits_between(old, new)
    assert applied([edit], old, new) == new
