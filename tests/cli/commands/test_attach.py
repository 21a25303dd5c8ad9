"""`crush-trio attach` at a real terminal: watching, taking part, and leaving without a trace."""

import json
import signal

import pytest

from tests.cli.processes import LIMIT, Home

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def leave(terminal):
    """Leave with Ctrl-D; check that the terminal is as it was."""
    terminal.type("\x04")
    assert terminal.wait() == 0
    terminal.assert_restored()


def test_a_prompt_is_typed_answered_and_cancelled(home):
    with home.terminal("attach") as terminal:
        terminal.until("ctrl-d leaves")
        terminal.until(lambda: terminal.screen.lines[-1] == ">" and terminal.screen.cursor_shown)
        terminal.type("long 5o00\x1b[D\x1b[D\x1b[D\x1b[3~0\r")
        terminal.until("> long 5000\n\nA task that nobody")
        terminal.until("esc cancels")
        terminal.type("\x1b")
        terminal.until("Stopped 1 run in")
        terminal.until("ctrl-d leaves")
        terminal.type("think about tea\r")
        terminal.until("I have thought about tea.")
        terminal.until("ctrl-d leaves")
        leave(terminal)
    assert terminal.text.count("Stopped 1 run") == 1
    assert terminal.text.count("> think about tea") == 1
    assert terminal.screen.lines[-1].startswith("Attach again with: crush-trio attach ")
    assert "ctrl-d" not in terminal.text


def test_ctrl_c_cancels_what_runs_and_nothing_else(home):
    with home.terminal("attach") as terminal:
        terminal.until("ctrl-d leaves")
        terminal.type("\x03")
        terminal.until("no run is active; ctrl-d leaves")
        terminal.type("half a line\x03")
        terminal.until(lambda: terminal.screen.lines[-1] == ">")
        terminal.type("long 5000\r")
        terminal.until("esc cancels")
        terminal.type("\x03")
        terminal.until("Stopped 1 run in")
        terminal.type("/help\r")
        terminal.until("it is not sent to the model")
        terminal.type("/quit\r")
        assert terminal.wait() == 0
        terminal.assert_restored()
    assert "> /help" not in terminal.text


def test_what_the_agent_asks_is_answered_at_the_bottom(home):
    with home.terminal("attach") as terminal:
        terminal.until("ctrl-d leaves")
        terminal.type("run `touch made`\r")
        terminal.until("Allow this? [y] once")
        assert "? bash asks for permission: execute\n  touch made" in terminal.text
        terminal.answer("y", "✓ allowed once")
        terminal.until("A model would go on from here")
        assert (home.work / "made").exists()
        terminal.type("\x15ask me Tea or coffee?\r")
        terminal.until("Tea or coffee? >")
        terminal.answer("x", "Tea or coffee? > x")
        terminal.type("\x15tea\r")
        terminal.until("→ tea")
        leave(terminal)


def test_a_long_prompt_is_broken_and_pasted_lines_are_kept(home):
    with home.terminal("attach", width=40) as terminal:
        terminal.until("ctrl-d leaves")
        terminal.type("\x1b[200~think about " + "tea " * 12 + "\nand\nbiscuits\x1b[201~")
        terminal.until("  biscuits")
        assert max(map(len, terminal.screen.lines)) <= 40
        terminal.type("\r")
        terminal.until("I have thought about tea")
        leave(terminal)


def test_a_terminal_that_changes_its_size_shows_everything_once(home):
    with home.terminal("attach", width=80, height=24) as terminal:
        terminal.until("ctrl-d leaves")
        terminal.type("long 220\r")
        terminal.until("like water")
        terminal.resize(50, 14)
        terminal.until("What was said until then is kept.")
        terminal.resize(110, 30)
        terminal.until("ctrl-d leaves")
        terminal.until(lambda: terminal.screen.lines[-1] == ">")
        leave(terminal)
    said = terminal.text.partition("> long 220")[2].partition("(completed")[0]
    assert len(said.split()) == 220


def test_the_past_is_shown_and_the_session_goes_on(home):
    _, out, _ = home.call("run", "-o", "json", "think about the past")
    session = json.loads(out)["session_id"]
    with home.terminal("attach", session[:6]) as terminal:
        terminal.until("> think about the past")
        terminal.until("I have thought about the past.")
        terminal.until("(reasoning, ")
        terminal.type("think about the future\r")
        terminal.until("I have thought about the future.")
        leave(terminal)


def test_everybody_sees_everything_and_the_first_answer_counts(home):
    with home.server(), home.terminal("attach") as one:
        one.until("ctrl-d leaves")
        with home.terminal("attach") as two:
            two.until("ctrl-d leaves")
            one.type("run `touch made`\r")
            for terminal in (one, two):
                terminal.until("> run `touch made`")
                terminal.until("Allow this?")
            two.answer("s", "✓ allowed for this session")
            one.until("(allowed by another client)")
            for terminal in (one, two):
                terminal.until("A model would go on from here")
            leave(two)
        code, _, _ = home.call("run", "-c", "-q", "think about others")
        assert code == 0
        one.until("> think about others")
        one.until("I have thought about others.")
        leave(one)


@pytest.mark.long
def test_a_run_is_cancelled_from_another_terminal_with_a_receipt(home):
    with home.server(), home.terminal("attach") as terminal:
        terminal.until("ctrl-d leaves")
        terminal.type("long 5000\r")
        terminal.until("A task")
        code, out, _ = home.call("cancel", "--all")
        assert code == 0
        head, row, summary = out.splitlines()
        assert head.split()[:2] == ["Run", "Session"]
        assert {"active", "cancelled"} <= set(row.split())
        assert summary.endswith("nothing is left running.")
        terminal.until("(cancelled after")
        leave(terminal)
        code, out, _ = home.call("cancel", "--all")
        assert (code, out) == (0, "Nothing was running.\n")
        code, _, err = home.call("cancel", "abcdefgh")
        assert code == 1
        assert "neither a session nor a run" in err


@pytest.mark.long
def test_a_server_that_goes_away_is_shown_and_one_that_comes_back_is_taken_up(home):
    with home.terminal("attach", "--host", f"unix://{home.root}/run/crush.sock") as nobody:
        assert nobody.wait() == 3
        assert "nothing answers at" in nobody.text
    with home.started("serve") as first:
        first.stdout.readline()
        with home.terminal("attach") as terminal:
            terminal.until("ctrl-d leaves")
            first.send_signal(signal.SIGTERM)
            first.wait(LIMIT)
            terminal.until("no connection")
            with home.server():
                terminal.until("ctrl-d leaves")
                terminal.type("think about returning\r")
                terminal.until("I have thought about returning.")
                leave(terminal)


def test_a_signal_from_outside_leaves_the_terminal_as_it_was(home):
    with home.terminal("attach") as terminal:
        terminal.until("ctrl-d leaves")
        terminal.child.kill(signal.SIGTERM)
        assert terminal.wait() == 143
        terminal.assert_restored()
