"""The bottom of the screen: drawn anew, without a trace, whatever becomes of the terminal."""

from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.cli.terminal.screen import Bottom, Region, without_ink
from tests.cli.screen import Screen


def test_what_is_done_stays_and_the_bottom_is_replaced():
    screen, region = Screen(20, 5), Region()
    screen.feed(region.paint([], Bottom(["one", "two"]), 20))
    assert screen.lines == ["one", "two"]
    assert not screen.cursor_shown
    screen.feed(region.paint(["done"], Bottom(["three"]), 20))
    assert screen.lines == ["done", "three"]
    screen.feed(region.close(20))
    assert screen.lines == ["done"]
    assert screen.cursor_shown


def test_the_cursor_is_where_it_was_wanted():
    screen, region = Screen(20, 5), Region()
    screen.feed(region.paint([], Bottom(["status", "> ab", "below"], (1, 4)), 20))
    assert (screen.row, screen.column) == (1, 4)
    assert screen.cursor_shown
    screen.feed(region.paint(["x"], Bottom(["> ab"], (0, 2)), 20))
    assert screen.lines == ["x", "> ab"]
    assert (screen.row, screen.column) == (1, 2)


def test_a_narrower_terminal_breaks_the_bottom_and_it_is_taken_away_all_the_same():
    screen, region = Screen(20, 10), Region()
    screen.feed(region.paint(["done"], Bottom(["a" * 20, "b" * 15, "> "], (2, 2)), 20))
    screen.resize(8, 10)
    screen.feed(region.paint([], Bottom(["short", "> "], (1, 2)), 8))
    assert screen.lines == ["done", "short", ">"]


lines = st.lists(st.text("abc", max_size=12), max_size=4)
pictures = st.lists(st.tuples(lines, lines, st.integers(6, 30), st.booleans()), max_size=12)


@settings(deadline=None)
@given(pictures)
def test_the_screen_shows_all_that_is_done_and_the_last_bottom_and_nothing_else(pictures):
    screen, region, done, bottom = Screen(12, 40), Region(), [], []
    for finished, bottom, width, cursor in pictures:
        screen.resize(max(width, 12), 40)
        place = (len(bottom) - 1, 0) if bottom and cursor else None
        screen.feed(region.paint(finished, Bottom(bottom, place), max(width, 12)))
        done += finished
    expected = [*done, *bottom]
    while expected and not expected[-1]:
        expected.pop()
    assert screen.lines == expected


def test_marks_are_taken_away_and_styles_stay():
    assert without_ink("\x1b[1ma b\x1b[0m c", 1) == "\x1b[1m b\x1b[0m c"
    assert without_ink("\x1b[1ma b\x1b[0m c", 2) == "\x1b[1m\x1b[0m c"
    assert without_ink("abc", 0) == "abc"
