"""Places are converted between what a server counts and what Python does, and edits go where they belong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.protocol import (
    BadEdit,
    Encoding,
    Lines,
    TextEdit,
    TextPosition,
    TextRange,
    apply_text_edits,
    decode_column,
    encoded_length,
    normalize_uri,
    path_of,
    uri_of,
)
from crush_trio.tools.files.text import FileText

LETTERS = st.text(alphabet=st.sampled_from("ab é漢😀\u0301\U0001f680"), max_size=20)
CODECS = {
    Encoding.UTF8: ("utf-8", 1),
    Encoding.UTF16: ("utf-16-le", 2),
    Encoding.UTF32: ("utf-32-le", 4),
}


def at(line, character):
    return TextPosition(line, character)


def change(start, end, text):
    return TextEdit(TextRange(at(*start), at(*end)), text)


@given(LETTERS, st.sampled_from(Encoding))
def test_units_are_what_the_encoding_makes_of_a_text(text, encoding):
    codec, size = CODECS[encoding]
    assert encoded_length(text, encoding) == len(text.encode(codec)) // size


@given(LETTERS, st.sampled_from(Encoding), st.data())
def test_a_column_survives_the_way_to_the_server_and_back(line, encoding, data):
    index = data.draw(st.integers(0, len(line)))
    assert decode_column(line, encoded_length(line[:index], encoding), encoding) == index


def test_a_place_inside_a_letter_is_before_it_and_one_after_the_line_at_its_end():
    assert decode_column("a😀b", 2, Encoding.UTF16) == 1
    assert decode_column("a😀b", 3, Encoding.UTF16) == 2
    assert decode_column("a😀b", 99, Encoding.UTF16) == 3
    assert decode_column("ab", 99, Encoding.UTF16) == 2


@given(st.text(alphabet="a\r\n", max_size=30))
def test_lines_end_as_servers_say_they_do(text):
    lines = Lines(text)
    expected = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert [lines.line(number) for number in range(len(lines))] == expected
    assert lines.line(len(lines)) == ""
    assert lines.offset(at(len(lines), 5), Encoding.UTF16) == len(text)


@pytest.mark.parametrize(
    ("end", "lines"), [((2, 0), (1, 1)), ((2, 1), (1, 2)), ((1, 5), (1, 1)), ((1, 0), (1, 1))]
)
def test_a_range_that_ends_where_a_line_begins_does_not_reach_into_it(end, lines):
    assert TextRange(at(1, 0), at(*end)).lines == lines


def test_an_edit_counts_in_utf16_and_leaves_the_rest_alone():
    text = FileText("\ufeffx = '😀' + old\r\nold\r\n")
    after = apply_text_edits(
        text, [change((0, 11), (0, 14), "new"), change((1, 0), (1, 3), "n\new")], Encoding.UTF16
    )
    assert after.content == "\ufeffx = '😀' + new\r\nn\r\new\r\n"


def test_two_insertions_at_one_place_keep_their_order():
    edits = [change((0, 1), (0, 1), "1"), change((0, 1), (0, 1), "2")]
    assert apply_text_edits(FileText("ab"), edits, Encoding.UTF16).content == "a12b"


def test_edits_that_overlap_are_refused():
    with pytest.raises(BadEdit, match="overlap"):
        apply_text_edits(
            FileText("abcd"),
            [change((0, 0), (0, 3), ""), change((0, 2), (0, 4), "")],
            Encoding.UTF16,
        )


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"start": {"line": 0, "character": 0}},
        {"start": {"line": -1, "character": 0}, "end": {"line": 0, "character": 0}},
        {"start": {"line": 1, "character": 0}, "end": {"line": 0, "character": 0}},
        {"start": {"line": "0", "character": 0}, "end": {"line": 0, "character": 0}},
        {"start": [], "end": []},
    ],
)
def test_what_is_no_range_is_a_failure_of_the_server(value):
    with pytest.raises(LspFailure):
        TextRange.read(value)


@pytest.mark.parametrize("value", [None, 3, {}, {"newText": 3}, {"newText": "x"}])
def test_what_is_no_edit_is_a_failure_of_the_server(value):
    with pytest.raises(LspFailure):
        TextEdit.read(value)


@pytest.mark.parametrize("name", ["a.py", "ä b.py", "c#1?.py", "100%.py", "a@b+c.py"])
def test_a_path_survives_being_an_address(name):
    path = Path("/w") / name
    assert path_of(uri_of(path)) == path


def test_one_file_has_one_address_however_a_server_spells_it():
    assert normalize_uri("file:///w/a%40b.py") == normalize_uri("file:///w/a@b.py")
    assert normalize_uri("file://localhost/w/a.py") == "file:///w/a.py"
    assert normalize_uri("untitled:x") == "untitled:x"


@pytest.mark.parametrize(
    "uri",
    [None, 3, "", "http://a/b", "file://elsewhere/a", "file:a", "file:///a%00b", "file://[/x"],
)
def test_what_is_no_file_of_this_machine_has_no_path(uri):
    assert path_of(uri) is None
