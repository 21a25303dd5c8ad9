"""Markdown that is still being written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.markdown import Markdown

from crush_trio.cli.terminal.screen import GrowingMarkdown, ink, plain
from tests.cli.drawing import renderer

TEXT = f"""\
# Title

Some *words* with `code`, {"and more words " * 20}

* one
* two

```python
print(1)

x = 2
{"y = 3" * 1}
z
z
z
z
z
```

| a | b |
|---|---|
| 1 | 2 |

The end of it."""


def grow(text, *, step=7, room=6, width=lambda n: 60, colours=False):
    """Let *text* come *step* letters at a time; return all lines that were let go."""
    draw = renderer(colours=colours).lines
    growing, lines, number = GrowingMarkdown(), [], 0
    for number, at in enumerate(range(0, len(text), step)):
        growing.append(text[at : at + step])
        shown = growing.advance(draw, width(number), room)
        assert len(shown.live) <= max(room, 2)
        lines += shown.done
    return [*lines, *growing.finish(draw, width(number))]


@pytest.mark.parametrize("room", [1, 6, 50])
@pytest.mark.parametrize("step", [3, 1000])
def test_in_the_end_it_looks_as_if_it_had_come_at_once(room, step):
    whole = renderer(colours=True).lines(Markdown(TEXT, hyperlinks=False), 60)
    assert grow(TEXT, step=step, room=room, colours=True) == whole


def test_a_block_is_let_go_when_the_next_one_has_begun():
    draw, growing = renderer().lines, GrowingMarkdown()
    growing.append("first\n\nsec")
    assert growing.advance(draw, 60, 10).done == ()
    growing.append("ond\n")
    shown = growing.advance(draw, 60, 10)
    assert shown.done == ("first",)
    assert shown.live == ("", "second")


def test_a_line_that_has_not_ended_may_still_become_something_else():
    draw, growing = renderer().lines, GrowingMarkdown()
    growing.append("text\n#")
    assert growing.advance(draw, 60, 10).done == ()
    growing.append("hashtag\n\n")
    assert growing.finish(draw, 60) == ("text #hashtag",)


def test_a_block_higher_than_the_screen_is_let_go_line_by_line():
    draw, growing = renderer().lines, GrowingMarkdown()
    growing.append("word " * 100)
    shown = growing.advance(draw, 20, 5)
    assert len(shown.done) == 20
    assert len(shown.live) == 5
    growing.append("word " * 4)
    assert len(growing.advance(draw, 20, 5).done) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_terminal_that_changes_its_size_loses_and_repeats_nothing(seed):
    widths = [40, 60, 80]
    lines = grow(TEXT, room=4, width=lambda n: widths[(n * 7 + seed * n // 3 + seed) % 3])
    whole = renderer().lines(Markdown(TEXT, hyperlinks=False), 60)
    assert "".join("".join(map(plain, lines)).split()) == "".join(
        "".join(map(plain, whole)).split()
    )


WORDS = st.sampled_from(
    [
        *("alpha", "beta gamma", "*x*", "`c`", "**b", "- ", "1. ", "# ", "> ", "```\n"),
        *("| a | b |\n", "|---|---|\n", "---", "===", "\n", "\n\n", "    ", " "),
        "words that have to be broken",
    ]
)


@pytest.mark.heavy
@settings(deadline=None, max_examples=40)
@given(st.lists(WORDS, max_size=25), st.integers(1, 9))
def test_on_a_high_screen_any_text_ends_as_if_it_had_come_at_once(words, step):
    text = "".join(words)
    assert grow(text, step=step, room=100) == grow(text, step=10_000, room=100)


@pytest.mark.heavy
@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["word ", "longer words ", "\n\n", "- x\n"]), max_size=60))
def test_on_a_low_screen_nothing_is_lost(words):
    text = "".join(words)
    whole = grow(text, step=10_000, room=100)
    assert sum(map(ink, grow(text, step=5, room=4, width=lambda n: 20))) == sum(map(ink, whole))
