"""Typing a line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from crush_trio.cli.terminal.editor import LineEditor, layout


def typed(*keys, text="one two three"):
    """Type *text* and then press *keys*; return the line with a mark where the cursor is."""
    editor = LineEditor()
    editor.press("text", text)
    for key in keys:
        assert editor.press(*key.split(" ", 1))
    return f"{editor.text[: editor.cursor]}|{editor.text[editor.cursor :]}"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ([], "one two three|"),
        (["backspace", "left", "text X"], "one two thrX|e"),
        (["home", "delete", "right"], "n|e two three"),
        (["word-left", "word-left"], "one |two three"),
        (["home", "word-right", "word-right"], "one two| three"),
        (["ctrl-w"], "one two |"),
        (["word-left", "ctrl-u"], "|three"),
        (["home", "word-right", "ctrl-k"], "one|"),
        (["newline", "text x", "home"], "one two three\n|x"),
    ],
)
def test_a_key_does_what_it_does_everywhere(keys, line):
    assert typed(*keys) == line


def test_the_ends_of_a_line_are_its_ends():
    assert typed("right", "end", "delete") == "one two three|"
    assert typed("home", "left", "backspace", "word-left") == "|one two three"


def test_a_key_that_has_nothing_to_do_with_lines_is_not_taken():
    assert not LineEditor().press("escape")


def test_earlier_lines_come_back_and_the_unfinished_one_is_not_lost():
    editor = LineEditor()
    for line in ("first", "second"):
        editor.press("text", line)
        assert editor.take() == line
    editor.press("text", "draft")
    seen = []
    for key in ("up", "up", "up", "down", "down", "down"):
        editor.press(key)
        seen.append(editor.text)
    assert seen == ["second", "first", "first", "second", "draft", "draft"]


def test_a_line_is_broken_at_the_edge_and_at_its_line_feeds():
    shown = layout("> ", "abcdef\ngh", cursor=8, width=5)
    assert shown.lines == ("> abc", "  def", "  gh")
    assert (shown.row, shown.column) == (2, 3)


def test_wide_letters_take_two_cells():
    shown = layout("> ", "漢字漢", cursor=3, width=6)
    assert shown.lines == ("> 漢字", "  漢")
    assert (shown.row, shown.column) == (1, 4)


@settings(deadline=None)
@given(st.text("ab漢\n\t\x1b ", max_size=60), st.integers(4, 30), st.data())
def test_no_row_is_wider_than_the_screen_and_the_cursor_is_on_it(text, width, data):
    cursor = data.draw(st.integers(0, len(text)))
    shown = layout("> ", text, cursor, max(width, 8))
    assert all(cell_len(line) <= max(width, 8) for line in shown.lines)
    assert 0 <= shown.row < len(shown.lines)
    assert 0 <= shown.column < max(width, 8)
