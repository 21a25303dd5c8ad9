"""Failures reach standard error where a program has configured no logging, and its handlers where it has."""

import logging
from contextlib import contextmanager

import pytest
import trio

from crush_trio import Completion, RunFailed, SessionId, Submission, open_agent, open_workspace
from crush_trio.providers.errors import ProviderUnauthorized
from crush_trio.server.logging import keep_logs
from crush_trio.testing import Fail, Say, ScriptedProvider

SECRET = "a token that looks like nothing"


@contextmanager
def unconfigured():
    """A program that has not configured logging: pytest's own handlers are put aside."""
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = kept


log = logging.getLogger("crush_trio.some.module")


def test_a_warning_is_one_line_on_standard_error_with_its_fields(capsys):
    with unconfigured(), keep_logs([SECRET]) as logs:
        log.info("claim.expired")
        log.warning(
            "run.failed: %s (run %s)", "no key", "r1", extra={"run_id": "r1", "error": SECRET}
        )
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING run.failed run_id='r1' error='[redacted]'")
    assert logs.tail(9, workspace_id="w") == []


def test_two_servers_in_one_program_write_a_line_once(capsys):
    with unconfigured(), keep_logs(), keep_logs():
        log.error("server.close_forced")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_after_the_server_python_itself_writes_warnings(capsys):
    with unconfigured():
        with keep_logs():
            pass
        log.warning("still there")
    assert capsys.readouterr().err == "still there\n"


@pytest.mark.parametrize("name", ["", "crush_trio"])
def test_handlers_of_the_program_get_the_record_and_nothing_else_writes_it(name, capsys):
    records, logger = [], logging.getLogger(name)
    handler = logging.Handler()
    handler.emit = records.append
    with unconfigured():
        logger.addHandler(handler)
        try:
            with keep_logs():
                log.warning("run.failed")
        finally:
            logger.removeHandler(handler)
    assert [each.getMessage() for each in records] == ["run.failed"]
    assert capsys.readouterr().err == ""


def test_a_program_without_a_last_resort_stays_silent(capsys, monkeypatch):
    monkeypatch.setattr(logging, "lastResort", None)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with unconfigured(), keep_logs():
        log.error("server.close_forced")
    assert capsys.readouterr().err == ""


def test_a_record_that_cannot_be_written_does_not_hurt_its_author(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    with unconfigured(), keep_logs():
        log.warning("run.failed")


# ── Without a server ────────────────────────────────────────────────────────────────────────────


async def test_a_turn_that_raises_leaves_its_traceback_and_the_id_of_its_run(capsys):
    async def turn(run):
        await trio.lowlevel.checkpoint()
        raise ValueError("my bug")

    with unconfigured():
        async with open_workspace(turn) as workspace:
            run = workspace.accept(Submission(session_id=SessionId("s"), prompt="hello"))
            await run.wait()
    written = capsys.readouterr().err
    assert written.startswith(f"run.failed: my bug (run {run.id})\nTraceback")
    assert written.count("ValueError: my bug") == 1


async def test_a_turn_that_completes_leaves_nothing(capsys):
    async def turn(run):
        await trio.lowlevel.checkpoint()
        return Completion(text="fine")

    with unconfigured():
        async with open_workspace(turn) as workspace:
            await workspace.accept(Submission(session_id=SessionId("s"), prompt="hello")).wait()
    assert capsys.readouterr().err == ""


@pytest.mark.real_clock
async def test_a_providers_error_is_one_line_and_another_one_has_its_traceback(capsys, tmp_path):
    model = ScriptedProvider(
        [[Fail(ProviderUnauthorized("no such key"))], [Fail(KeyError("bug"))], [Say("fine")]]
    )
    with unconfigured():
        async with open_agent(provider=model, directory=tmp_path) as agent:
            with pytest.raises(RunFailed):
                await agent.ask("one")
            [line] = capsys.readouterr().err.splitlines()
            assert line.startswith("run.failed: ")
            assert "no such key (run " in line
            with pytest.raises(RunFailed):
                await agent.ask("two")
            assert "KeyError: 'bug'" in capsys.readouterr().err
            await agent.ask("three")
    assert capsys.readouterr().err == ""
