"""`crush-trio run` at a real terminal: what a person sees, presses, and is left with."""

import os
import signal

import pytest

from tests.cli.processes import Home, processes_with, wait_for_process

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_an_answer_is_shown_while_it_comes_and_stays_once(home):
    with home.terminal("run", "long", "120") as terminal:
        terminal.until("A task that nobody waits for")
        terminal.until("working")
        terminal.until("ctrl-c cancels")
        assert terminal.wait() == 0
        terminal.assert_restored()
    assert "working" not in terminal.text
    assert "the offline demo answers" in terminal.text
    answer = terminal.text[terminal.text.index("A task") : terminal.text.index("completed after")]
    assert len(answer.split()) == 120
    assert "completed after" in terminal.screen.lines[-1]


def test_an_answer_longer_than_the_screen_is_there_from_beginning_to_end(home):
    with home.terminal("run", "-q", "long", "200", width=40, height=10) as terminal:
        assert terminal.wait() == 0
    words = terminal.text.split()
    assert len(words) == 200
    assert " ".join(words).startswith("A task that nobody waits for is a task")
    assert max(map(len, terminal.screen.lines)) <= 40


def test_markdown_is_drawn_and_a_tool_is_named(home):
    with home.terminal("run", "-q", "--policy", "allow", "run `echo hi`") as terminal:
        assert terminal.wait() == 0
        terminal.assert_restored()
    assert "✓ bash echo hi\n  hi" in terminal.text
    assert "The tool bash has answered" in terminal.text, "backquotes became a style"


@pytest.mark.parametrize(
    ("key", "result", "code", "made"),
    [("y", "✓ allowed once", 0, True), ("n", "✗ denied", 4, False), ("\x1b", "✗ denied", 4, False)],
)
def test_a_permission_is_asked_for_and_answered_in_place(home, key, result, code, made):
    with home.terminal("run", "run `touch made`") as terminal:
        terminal.until("Allow this? [y] once  [s] for this session  [a] always  [n] no")
        assert "? bash asks for permission: execute\n  touch made\n" in terminal.text
        terminal.answer(key, result)
        assert terminal.wait() == code
        terminal.assert_restored()
    assert (home.work / "made").exists() is made
    assert "Allow this?" not in terminal.text


def test_a_change_is_shown_before_it_is_made(home):
    (home.work / "tea.txt").write_text("milk first\n")
    home.call("run", "-q", "view tea.txt")
    with home.terminal("run", "-c", "replace milk with tea in tea.txt") as terminal:
        terminal.until("Allow this?")
        assert "-milk first" in terminal.text
        assert "+tea first" in terminal.text
        terminal.answer("s", "✓ allowed for this session")
        assert terminal.wait() == 0
    assert (home.work / "tea.txt").read_text() == "tea first\n"


def test_a_question_of_the_model_is_answered_in_place(home):
    with home.terminal("run", "-q", "ask me How are you?") as terminal:
        terminal.until("How are you? >")
        terminal.answer("x", "How are you? > x")
        terminal.type("\x15fine\r")
        assert terminal.wait() == 0
    assert "User provided: fine" in terminal.text


def test_ctrl_c_cancels_the_run_and_says_what_was_stopped(home):
    command = f"sleep 98765.{os.getpid()}"
    with home.terminal("run", "--policy", "allow", f"run `{command}`") as terminal:
        terminal.until("… bash sleep")
        wait_for_process(command)
        terminal.child.sendintr()
        assert terminal.wait() == 130
        terminal.assert_restored()
    assert "Stopped 1 run in" in terminal.text
    assert "stopped with it; nothing is left running." in terminal.text
    assert "cancelled after" in terminal.text
    assert processes_with(command) == []


def test_escape_cancels_too(home):
    with home.terminal("run", "long", "5000") as terminal:
        terminal.until("A task")
        terminal.type("\x1b")
        assert terminal.wait() == 130
        terminal.assert_restored()


def test_ctrl_c_while_something_is_asked_cancels_the_run(home):
    with home.terminal("run", "run `touch made`") as terminal:
        terminal.until("Allow this?")
        terminal.child.sendintr()
        assert terminal.wait() == 130
        terminal.assert_restored()
    assert not (home.work / "made").exists()


def test_what_is_typed_meanwhile_does_not_get_between_the_lines(home):
    with home.terminal("run", "-q", "long", "60") as terminal:
        terminal.until("A task")
        terminal.type("rm -rf everything\r")
        assert terminal.wait() == 0
    assert "rm -rf" not in terminal.text


def test_a_terminal_that_changes_its_size_shows_everything_once(home):
    with home.terminal("run", "-q", "long", "200", width=80, height=24) as terminal:
        terminal.until("like water")
        terminal.resize(40, 12)
        terminal.until(lambda: len(terminal.text.split()) > 120)
        terminal.resize(100, 30)
        assert terminal.wait() == 0
        terminal.assert_restored()
    assert len(terminal.text.split()) == 200


def test_a_terminal_that_is_closed_ends_the_run(home):
    command = f"sleep 98766.{os.getpid()}"
    with home.terminal("run", "--policy", "allow", f"run `{command}`") as terminal:
        terminal.until("… bash sleep")
        wait_for_process(command)
        pid = terminal.child.pid
        terminal.child.ptyproc.fileobj.close()
        _, status = os.waitpid(pid, 0)
        terminal.child.ptyproc.terminated = True
    assert os.waitstatus_to_exitcode(status) in {129, -signal.SIGHUP}
    assert processes_with(command) == []


def test_a_dumb_terminal_gets_plain_text(tmp_path):
    home = Home(tmp_path, {"TERM": "dumb"})
    with home.terminal("run", "-q", "think about lunch") as terminal:
        assert terminal.wait() == 0
    assert terminal.raw.split("\r\n")[0] == "I have thought about lunch. Nothing came of it."
    assert "\x1b" not in terminal.raw
