"""An edit finds its place exactly once, or says why it does not."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crush_trio.tools.base import ToolError
from crush_trio.tools.files.matching import find_edit
from crush_trio.tools.files.text import FileText

CHECKS = settings(derandomize=True, deadline=None, database=None)

TEXTS = st.text("ab \n", max_size=25)
PIECES = st.text("ab \n", min_size=1, max_size=4)


def edited(text, old, new, **options):
    return FileText(text).spliced(find_edit(text, old, new, **options).splices).content


def refused(text, old, new="new", **options):
    with pytest.raises(ToolError) as caught:
        find_edit(text, old, new, **options)
    return str(caught.value)


# ── Exactly ─────────────────────────────────────────────────────────────────────────────────────


@CHECKS
@given(TEXTS, PIECES, TEXTS, PIECES)
def test_a_text_that_is_there_once_is_replaced_there_and_nowhere_else(head, old, tail, new):
    unique = f"<{old}>"
    assert edited(head + unique + tail, unique, new) == head + new + tail


@CHECKS
@given(st.lists(TEXTS, min_size=2, max_size=4), PIECES, PIECES)
def test_replacing_all_is_replacing_as_python_does_it(pieces, old, new):
    assume(old != new)
    text = old.join(pieces)
    assert edited(text, old, new, replace_all=True) == text.replace(old, new)


@CHECKS
@given(TEXTS, PIECES, TEXTS, TEXTS)
def test_a_text_that_is_there_twice_is_refused(head, old, between, tail):
    text = head + old + between + old + tail
    assert "set replace_all" in refused(text, old)


@CHECKS
@given(TEXTS, PIECES, PIECES)
def test_an_edit_changes_what_it_says_or_is_refused(text, old, new):
    """Whatever the white space: what is not white space changes from old to new, in one place."""
    assume(old != new)
    try:
        after = edited(text, old, new)
    except ToolError:
        return
    bare, bare_old, bare_new = ("".join(each.split()) for each in (text, old, new))
    places = [n for n in range(len(bare) + 1) if bare.startswith(bare_old, n)]
    results = {bare[:n] + bare_new + bare[n + len(bare_old) :] for n in places}
    assert "".join(after.split()) in results


def test_two_places_that_overlap_are_two():
    assert "found 2 times" in refused("aaa", "aa")
    assert edited("aaa", "aa", "b", replace_all=True) == "ba"


def test_the_lines_of_the_places_are_named_up_to_five():
    assert "3 times (lines 1, 3, 4)" in refused("x\n-\nx\nx\n", "x")
    assert "7 times (lines 1, 2, 3, 4, 5, …)" in refused("x\n" * 7, "x")


def test_the_same_text_again_is_refused():
    assert "are the same" in refused("a", "a", "a")


# ── Without regard to white space ───────────────────────────────────────────────────────────────

FILE = """\
class A:
\tdef one(self):
\t\tif self.ready:
\t\t\treturn  1

\tdef two(self):
\t\treturn 2
"""


def test_spaces_for_tabs_are_understood_and_new_lines_get_tabs():
    old = "    if self.ready:\n        return 1\n"
    new = "    if self.ready:\n        if self.really:\n            return 3\n        return 1\n"
    expected = FILE.replace(
        "\t\t\treturn  1", "\t\t\tif self.really:\n\t\t\t\treturn 3\n\t\t\treturn  1"
    )
    assert edited(FILE, old, new) == expected


def test_lines_that_an_edit_repeats_stay_as_the_file_has_them():
    text = "a =  1   \nb   = 2\nc = 3\n"
    assert edited(text, "a = 1\nb = 2\n", "a = 1\nb = 5\n") == "a =  1   \nb = 5\nc = 3\n"


def test_the_answer_says_which_lines_were_taken():
    assert "at lines 3 to 4." in find_edit(FILE, "if self.ready:\n  return 1", "pass").note
    assert "at line 4." in find_edit(FILE, "\t\t\treturn 1\n", "x").note
    assert find_edit(FILE, "return 2", "x").note == ""


def test_deleting_lines_loosely_deletes_their_line_feed_if_it_was_quoted():
    text = "a\n\tb\nc\n"
    assert edited(text, "  b\n", "") == "a\nc\n"
    assert edited(text, "  b", "") == "a\n\nc\n"


def test_a_last_line_without_line_feed_stays_without():
    assert edited("a\n\tb", "  b\n", "  c\n") == "a\n\tc"
    assert edited("a\n\tb", "  b\n", "") == "a\n"
    assert edited("a\n\tb\n", "  b\n", "  c\n") == "a\n\tc\n"


def test_blank_lines_differ_in_white_space_only():
    text = "a\n  \n\tb\nc\n"
    assert edited(text, "a\n\n  b\n", "a\n\n  x\n") == "a\n  \n\tx\nc\n"
    assert edited(text, "a\n\n  b\n", "y\n") == "y\nc\n"


def test_nothing_but_blank_lines_is_found_exactly_or_not_at_all():
    assert "not in the file" in refused("a\n\t\nb\n", "    \n")
    assert "not in the file" in refused("a\n\t\n\nb\n", "  \n  \n")


def test_two_places_that_differ_in_white_space_only_are_refused():
    message = refused("\ta = 1\n  a = 1\n", "a  =  1\n")
    assert "2 places differ from it in white space only" in message


def test_replacing_all_does_not_mean_all_that_look_similar():
    assert "2 places" in refused("\ta = 1\n  a = 1\n", "a  =  1\n", replace_all=True)


def test_words_are_not_joined_or_split():
    assert "not in the file" in refused("returnvalue\n", "return value\n")


@CHECKS
@given(
    st.lists(st.sampled_from(["a", "b", "c d", ""]), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.integers(0, 3),
)
def test_the_rest_of_the_file_is_untouched_by_a_loose_match(lines, levels, shift):
    assume(any(lines))
    block = ["\t" * level + line for line, level in zip(lines, levels, strict=False)]
    quoted = [" " * (4 * level + shift) + line for line, level in zip(lines, levels, strict=False)]
    head, tail = "first  \n\t\n", "  last"
    text = head + "\n".join(block) + "\n" + tail
    old, new = "\n".join(quoted) + "\n", "x y z\n"
    assume(old not in text)
    after = edited(text, old, new)
    assert after.startswith(head)
    assert after.endswith("\n" + tail)
    assert after[len(head) : -len(tail)].split() == ["x", "y", "z"]


# ── Hints ───────────────────────────────────────────────────────────────────────────────────────


def test_line_numbers_in_the_quotation_are_recognised():
    assert "Leave out everything up to" in refused("a\nb\n", "     1|a\n     2|b\n")


def test_a_quotation_that_begins_right_is_told_where_it_goes_wrong():
    message = refused("x\na\nb\nc\n", "a\nb\nd\n")
    assert "From line 2 on the file agrees with it, but line 4 is 'c' and not 'd'." in message


def test_of_several_beginnings_the_longest_is_told():
    assert "From line 3 on" in refused("a\nx\na\nb\ny\n", "a\nb\nc\n")


def test_a_quotation_that_goes_on_behind_the_end_is_told_so():
    assert "it ends after line 2" in refused("a\nb\n", "a\nb\nc\n")


def test_a_quotation_of_something_else_is_told_so():
    assert "No line of the file is its first line" in refused("a\n", "b\n")
    assert "No line of the file is its first line" in refused("", "b")
    assert "No line of the file is its first line" in refused("a\n", "\nb\n")


def test_long_lines_are_shortened_in_a_hint():
    message = refused("a\n" + "x" * 5000 + "\n", "a\n" + "y" * 5000)
    assert len(message) < 500
