"""The screen of a program that goes on while it is watched."""

import io
import os
import sys

import pytest
import trio
from rich.console import Console
from trio.testing import wait_all_tasks_blocked

from crush_trio.cli.report.conversation import ConversationView
from crush_trio.cli.report.terminal import FRAME, TICK, LiveScreen, TerminalReporter, spinner
from crush_trio.cli.terminal.screen import Bottom
from crush_trio.client.follower import Progress
from crush_trio.client.messages import TextPiece
from tests.cli.drawing import renderer
from tests.cli.screen import Screen


class Terminal(io.StringIO):
    """A file that is a screen."""

    def __init__(self, width, height):
        super().__init__()
        self.screen = Screen(width, height)

    def write(self, text):
        self.screen.feed(text)
        return len(text)


class Foot:
    """Two lines and a cursor."""

    moving = False

    def bottom(self, renderer, width, room):
        return Bottom(["status", "> "][-room:], (min(1, room - 1), 2))


def open_live_screen(width=60, height=12, foot=None):
    terminal, painted = Terminal(width, height), []
    console = Console(file=terminal, width=width, height=height, force_terminal=True)
    live = LiveScreen(
        console, ConversationView(), foot or Foot(), lambda: painted.append(trio.current_time())
    )
    return live, terminal.screen, painted


def test_the_bottom_is_below_and_the_cursor_in_it():
    live, screen, _ = open_live_screen()
    live.seen = lambda: None
    live.conversation.note("first")
    live.conversation.tell(TextPiece("m1", "grows"))
    live.paint()
    assert screen.lines == ["first", "", "grows", "status", ">"]
    assert (screen.row, screen.column) == (4, 2)


def test_a_terminal_without_a_size_is_as_wide_as_most(monkeypatch):
    """It had ten columns."""
    monkeypatch.setattr(os, "get_terminal_size", lambda _=0: os.terminal_size((0, 0)))
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    live, screen, _ = open_live_screen(80, 24)
    live.seen = lambda: None
    live.conversation.note("word " * 12)
    live.paint()
    assert screen.lines == [("word " * 12).strip(), "status", ">"]


@pytest.mark.heavy
@pytest.mark.parametrize("height", [3, 4, 8])
@pytest.mark.parametrize("width", [20, 110])
def test_whatever_is_said_the_screen_ends_with_the_bottom_and_shows_everything_once(width, height):
    live, screen, _ = open_live_screen(width, height)
    live.seen = lambda: None
    words = [f"w{n}" for n in range(300)]
    for word in words:
        live.conversation.tell(TextPiece("m1", f"{word} "))
        live.paint()
        assert screen.lines[-1] == ">"
        assert len(screen.rows) - screen.row <= 2
    live.close()
    assert screen.text.split() == words
    assert max(map(len, screen.lines)) > width - 8, "the whole width is used"
    assert screen.cursor_shown


def test_somebody_else_may_have_the_terminal_in_between():
    live, screen, _ = open_live_screen()
    live.seen = lambda: None
    live.conversation.note("before")
    live.paint()
    live.withdraw()
    screen.feed("$ fg\n")
    live.paint()
    assert screen.lines == ["before", "$ fg", "status", ">"]


async def test_it_paints_when_something_has_changed_and_not_too_often(autojump_clock):
    live, _, painted = open_live_screen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.keep_painted)
        await wait_all_tasks_blocked()
        assert painted == []
        began = trio.current_time()
        for _ in range(10):
            live.touch()
            await trio.sleep(FRAME / 5)
        assert [round(at - began, 3) for at in painted] == [0, FRAME]
        await trio.sleep(100)
        assert len(painted) == 3
        nursery.cancel_scope.cancel()


async def test_what_moves_is_painted_again_and_again(autojump_clock):
    foot = Foot()
    foot.moving = True
    live, _, painted = open_live_screen(foot=foot)
    with trio.move_on_after(TICK * 10.5):
        await live.keep_painted()
    assert len(painted) == 10
    assert len({spinner(at) for at in painted}) == 10


def test_a_terminal_that_is_gone_is_no_reason_to_fail():
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    live = LiveScreen(Console(file=Gone(), width=40, height=10), ConversationView(), Foot())
    live.conversation.note("nobody sees this")
    live.paint()
    live.close()


async def test_progress_stands_in_the_status_line_until_something_follows():
    reporter = TerminalReporter(Console(file=io.StringIO()))
    reporter.tell(Progress("a server: half"))
    assert "a server: half" in "".join(reporter.bottom(renderer(), 60, 5).lines)
    reporter.tell(TextPiece("m1", "done"))
    assert "half" not in "".join(reporter.bottom(renderer(), 60, 5).lines)
