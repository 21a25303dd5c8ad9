"""Nothing that a stranger wrote is obeyed by the terminal."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.cli.terminal.text import every_character, one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("over\rwrite", "over␍write"),
        ("\x7f", "␡"),
        ("rm x\u202e txt", "rm x<U+202E> txt"),
        ("rm\u200b -rf\ufeff", "rm<U+200B> -rf<U+FEFF>"),
        ("a\u2060b\U000e0041", "a<U+2060>b<U+E0041>"),
        ("\x85", "<U+0085>"),
        ("\ud800", "\ufffd"),
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


@pytest.mark.parametrize(
    "text",
    [
        "\u0646\u0645\u06cc\u200c\u062f\u0627\u0646\u0645",
        "\u0915\u094d\u200d\u0937",
        "\U0001f469\u200d\U0001f4bb",
        "\u2764\ufe0f",
    ],
)
def test_joiners_that_a_script_or_an_emoji_needs_stay_in_text_and_are_shown_where_a_person_allows(
    text,
):
    assert visible(text) == text
    assert every_character(text) in {
        text.replace(letter, f"<U+{ord(letter):04X}>")
        for letter in "\u200c\u200d\ufe0f"
        if letter in text
    }


@settings(deadline=None)
@given(st.text())
def test_where_a_person_allows_something_every_character_is_seen(text):
    shown = every_character(text)
    assert every_character(shown) == visible(shown) == shown
    assert not any(unicodedata.category(letter) == "Cf" for letter in shown if letter not in KNOWN)


KNOWN = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
"""Characters of the category of formatting that are seen: Arabic and Kaithi signs around numbers."""


def test_a_line_is_cut_off_where_it_is_too_long():
    assert one_line("  a\n b\t c ") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"
