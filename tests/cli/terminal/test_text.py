"""Nothing that a stranger wrote is obeyed by the terminal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.cli.terminal.text import one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("over\rwrite", "over␍write"),
        ("\x7f", "␡"),
        ("rm x\u202e txt", "rm x<right-to-left override> txt"),
    ],
)
def test_what_a_terminal_could_obey_is_shown_instead(text, shown):
    assert visible(text) == shown


@settings(deadline=None)
@given(st.text())
def test_no_control_character_is_left(text):
    assert all(
        letter.isprintable() or letter in "\n\t" or ord(letter) > 0x9F for letter in visible(text)
    )
    assert "\x1b" not in visible(text)
    visible(text).encode()


def test_a_line_is_cut_off_where_it_is_too_long():
    assert one_line("  a\n b\t c ") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"
