"""What people type, however the terminal cuts it into pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.cli.terminal.keyboard import ESCAPE, Key, KeyDecoder


def decode(*pieces):
    decoder = KeyDecoder()
    return [key for piece in pieces for key in decoder.feed(piece)] + list(decoder.flush())


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"\r", ["enter"]),
        (b"\n", ["newline"]),
        (b"\x1b\r", ["newline"]),
        (b"\x7f\x08", ["backspace", "backspace"]),
        (b"\x03\x04\x1a", ["ctrl-c", "ctrl-d", "ctrl-z"]),
        (b"\x1b[A\x1b[B\x1bOC\x1bOD", ["up", "down", "right", "left"]),
        (b"\x1b[1;5C\x1bb", ["word-right", "word-left"]),
        (b"\x1b[3~\x1b[H\x1b[4~", ["delete", "home", "end"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\x1b", ["escape", "escape"]),
        (b"\x1b[99~\x1b[?1;2c", []),
    ],
)
def test_a_key_has_a_name(data, names):
    assert [key.name for key in decode(data)] == names


def test_letters_are_text_in_any_script():
    assert decode("aé漢".encode()) == [Key("text", "a"), Key("text", "é"), Key("text", "漢")]


def test_an_escape_is_kept_back_until_somebody_says_that_nothing_follows():
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == ()
    assert decoder.unsure
    assert decoder.flush() == (ESCAPE,)
    assert not decoder.unsure


def test_what_is_pasted_is_text_whatever_it_says():
    assert decode(b"\x1b[200~a\r\nb\x03\x1b[201~c") == [Key("text", "a\nb\x03"), Key("text", "c")]


def test_bytes_that_are_no_text_do_not_stop_the_rest():
    assert [key.text for key in decode(b"\xffa")][-1] == "a"


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "é", "\r", "\x1b[A", "\x1b[1;5C", "\x1b[200~x\x1b[201~"])))
def test_it_does_not_matter_how_the_bytes_are_cut(typed):
    data = "".join(typed).encode()
    assert decode(*(data[at : at + 1] for at in range(len(data)))) == decode(data)
