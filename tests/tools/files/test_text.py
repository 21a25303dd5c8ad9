"""Whatever an edit does not touch stays, to the last byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.tools.files.text import BOM, FileText, Splice, common_prefix_length

CHECKS = settings(derandomize=True, deadline=None, database=None)

LINES = st.lists(st.tuples(st.text("ab \tü😀", max_size=4), st.sampled_from(["\n", "\r\n"])))
TAILS = st.text("abü", max_size=3)


@st.composite
def texts(draw):
    body = "".join(line + ending for line, ending in draw(LINES)) + draw(TAILS)
    return FileText(draw(st.sampled_from(["", BOM])) + body)


@st.composite
def texts_with_a_splice(draw):
    text = draw(texts())
    start = draw(st.integers(0, len(text.plain)))
    end = draw(st.integers(start, len(text.plain)))
    return text, Splice(start, end, draw(st.text("ab\n", max_size=5)))


@CHECKS
@given(texts())
def test_bytes_survive_decoding(text):
    assert FileText.decoded(text.encoded()) == text


@CHECKS
@given(texts_with_a_splice())
def test_a_splice_changes_the_plain_text_as_it_says(case):
    text, splice = case
    expected = text.plain[: splice.start] + splice.text + text.plain[splice.end :]
    assert text.spliced([splice]).plain == expected


@CHECKS
@given(texts_with_a_splice())
def test_a_splice_leaves_everything_around_it_as_it_is(case):
    text, splice = case
    after = text.spliced([splice])
    assert after.bom == text.bom
    before = text.spliced([Splice(splice.start, len(text.plain), "")]).content
    behind = text.spliced([Splice(0, splice.end, "")]).content.removeprefix(text.bom)
    assert after.content.startswith(before)
    assert after.content.endswith(behind)


@CHECKS
@given(texts())
def test_a_splice_that_puts_back_what_was_there_changes_nothing(text):
    assert text.spliced([Splice(0, len(text.plain), text.plain)]) == text


@pytest.mark.parametrize(
    ("content", "newline"),
    [("", "\n"), ("a", "\n"), ("a\r\n", "\r\n"), ("a\r\nb\n", "\n"), ("a\r\nb\r\nc\n", "\r\n")],
)
def test_new_lines_end_as_most_lines_do(content, newline):
    text = FileText(content)
    assert text.newline == newline
    assert text.spliced([Splice(0, 0, "new\n")]).content == f"new{newline}{content}"


def test_several_splices_apply_in_any_order():
    text = FileText("one\r\ntwo\r\nthree")
    splices = [Splice(8, 13, "3"), Splice(0, 3, "1\n1")]
    assert text.spliced(splices).content == "1\r\n1\r\ntwo\r\n3"


def test_lines_that_a_splice_repeats_keep_their_own_endings():
    text = FileText("a\nb\r\nc\nd\r\ne\r\nf\r\n")
    assert text.newline == "\r\n"
    after = text.spliced([Splice(0, 8, "a\nb\nX\nd\n")])
    assert after.content == "a\nb\r\nX\nd\r\ne\r\nf\r\n"


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        ("a\r\nb\r\n", "x\ny\n", "x\r\ny\r\n"),
        ("a\r\nb\r\n", "x\ny", "x\r\ny"),
        ("a\nb\n", "x\r\ny\r\n", "x\r\ny\r\n"),
        ("a\r\n", "x\r\ny\n", "x\r\ny\n"),
        (BOM + "a\n", "x\n", BOM + "x\n"),
        (BOM + "a\n", BOM + "x\n", BOM + "x\n"),
        ("a\n", BOM + "x\n", "x\n"),
        ("", "x\r\ny\n", "x\r\ny\n"),
    ],
)
def test_a_rewritten_text_keeps_its_manner(before, content, after):
    assert FileText(before).rewritten(content).content == after


@CHECKS
@given(st.text("ab", max_size=5), st.text("ab", max_size=5))
def test_the_common_head_is_common_and_cannot_be_longer(one, other):
    size = common_prefix_length(one, other)
    assert one[:size] == other[:size]
    assert one[size : size + 1] != other[size : size + 1] or size == len(one) == len(other)
