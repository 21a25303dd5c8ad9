"""The log of a server: its two forms, what is taken out of it, and what never gets in."""

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection

import pytest
from trio.testing import wait_all_tasks_blocked

from crush_trio.cli.exits import ExitCode
from crush_trio.cli.main import main
from crush_trio.clock import CountingIds
from crush_trio.log_context import logged_for
from crush_trio.server.logging import (
    OWN,
    HumanFormatter,
    JsonFormatter,
    LogFormat,
    LogLevel,
    formatter,
    open_log,
)
from crush_trio.store.changes import RunAccepted
from crush_trio.store.errors import DiskFull
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say
from crush_trio.testing.server.agent import ScriptedAgent, ScriptedTool
from crush_trio.testing.server.faulty_store import StoreFault
from crush_trio.testing.server.server import client_id, open_test_server

KEY = "sk-0123456789abcdefghij"
TOKEN = "a token that looks like nothing"
BOTH = pytest.mark.parametrize("form", list(LogFormat))


def record(event="claim.expired", **fields):
    return logging.makeLogRecord(
        {"name": "crush_trio.x", "msg": event, "levelname": "INFO", "created": 1.5, **fields}
    )


def failed(error):
    try:
        raise error
    except type(error):
        return sys.exc_info()


# ── The forms ───────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_an_event_says_whose_work_was_done(form):
    with logged_for("w1"):
        assert "w1" in formatter(form).format(record())
        assert "w1" not in formatter(form).format(record(workspace_id="w2"))
    assert "workspace_id" not in formatter(form).format(record())


def test_for_people_an_event_is_one_line_with_its_fields():
    line = HumanFormatter().format(record(client_id="c\nERROR forged", seconds=2))
    assert line == (
        r"1970-01-01T00:00:01.500Z INFO claim.expired client_id='c\nERROR forged' seconds=2"
    )


def test_for_programs_an_event_is_one_object_on_one_line():
    line = JsonFormatter().format(record(client_id="c\nd", seconds=2, hosts=["a", "b"]))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "event": "claim.expired",
        "logger": "crush_trio.x",
        "fields": {"client_id": "c\nd", "seconds": 2, "hosts": ["a", "b"]},
    }


def test_an_exception_follows_its_line_or_is_a_text_in_its_object():
    event = record("run.failed", exc_info=failed(RuntimeError("no such thing")))
    first, *trace = HumanFormatter().format(event).splitlines()
    assert first.endswith("INFO run.failed")
    assert trace[0].startswith("Traceback")
    assert trace[-1] == "RuntimeError: no such thing"
    told = json.loads(JsonFormatter().format(event))
    assert told["exception"].splitlines() == trace
    assert told["fields"] == {}


@BOTH
def test_a_message_of_a_library_cannot_pass_for_two_lines(form):
    event = record("one %s", args=("\nERROR two\r",))
    assert len(formatter(form).format(event).splitlines()) == 1


@BOTH
def test_whatever_a_field_holds_can_be_written(form):
    class Odd:
        def __str__(self):
            return "odd \ud800"

    values = {
        "odd": Odd(),
        "path": os.fsdecode(b"/caf\xe9"),
        "big": 2**80,
        "not_a_number": float("nan"),
        "nested": {1: {"a", "b"}, "\ud800": (None, True)},
        "state": LogLevel.INFO,
    }
    line = formatter(form).format(record(**values))
    assert line.encode().count(b"\n") == 0
    assert "1208925819614629174706176" in line


# ── Secrets ─────────────────────────────────────────────────────────────────────────────────────────


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"api_key": "hunter2"},
        {"headers": {"Authorization": "hunter2"}},
        {"argv": ["--token", "hunter2"]},
        {"env": ["GITHUB_TOKEN=hunter2"]},
        {"notice": f"the key {KEY} is bad"},
        {"url": "https://me:hunter2@example.com/"},
        {"reason": f"it said {TOKEN}"},
        {"nested": {"deep": [f"Bearer {KEY}"]}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_secret_is_taken_out_by_its_name_by_its_look_or_because_it_is_known(form, fields):
    line = formatter(form, secrets=[TOKEN]).format(record(**fields))
    assert "[redacted]" in line
    assert not any(secret in line for secret in ("hunter2", KEY, TOKEN))


@BOTH
def test_secrets_are_taken_out_of_messages_and_exceptions(form):
    error = RuntimeError(f"{KEY} and {TOKEN}")
    event = record("called with %s", args=(KEY,), exc_info=failed(error), stack_info=TOKEN)
    line = formatter(form, secrets=[TOKEN]).format(event)
    assert KEY not in line
    assert TOKEN not in line
    assert "RuntimeError: [redacted] and [redacted]" in line


# ── Where it goes ───────────────────────────────────────────────────────────────────────────────────


def events(stream):
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("level", "logged"),
    [
        (LogLevel.DEBUG, ["debug", "info", "warning", "error"]),
        (LogLevel.INFO, ["info", "warning", "error"]),
        (LogLevel.WARNING, ["warning", "error"]),
        (LogLevel.ERROR, ["error"]),
    ],
)
def test_our_own_events_are_logged_from_the_level_on_that_was_asked_for(level, logged):
    stream = io.StringIO()
    with open_log(LogFormat.JSON, level, stream=stream):
        for each in LogLevel:
            logging.getLogger(f"{OWN}.server").log(each.number, each.value)
    assert events(stream) == logged


@pytest.mark.parametrize("level", list(LogLevel))
def test_nothing_below_a_warning_is_taken_from_a_library(level):
    """Libraries that talk to models log requests there, with everything that was said."""
    stream = io.StringIO()
    with open_log(LogFormat.JSON, level, stream=stream):
        library = logging.getLogger("openai._base_client")
        library.debug("Request options: %s", {"messages": ["a prompt"]})
        library.info("HTTP Request: POST")
        library.error("failed")
    assert events(stream) == ["failed"]


def test_a_log_ends_with_its_block_and_leaves_everything_as_it_was():
    root, own = logging.getLogger(), logging.getLogger(OWN)
    before = root.level, own.level, list(root.handlers)
    stream = io.StringIO()
    with open_log(LogFormat.JSON, LogLevel.DEBUG, stream=stream):
        assert own.isEnabledFor(logging.DEBUG)
    own.error("too late")
    assert stream.getvalue() == ""
    assert (root.level, own.level, list(root.handlers)) == before


@pytest.mark.parametrize("option", ["--log-format=xml", "--log-level=loud"])
def test_a_form_or_a_level_that_does_not_exist_is_a_misuse(capsys, option):
    with pytest.raises(SystemExit) as ended:
        main(["serve", option])
    assert ended.value.code == ExitCode.MISUSED
    assert "choose from" in capsys.readouterr().err


# ── What never gets in ──────────────────────────────────────────────────────────────────────────────

A = client_id(1)
FLOWER = "marigold"
PROMPT = f"my key is {KEY}, plant a {FLOWER}"


def crash(_):
    raise RuntimeError("boom")


def answers(gate):
    """Return a model's part: a turn that ends well, one that is retried and refused, two that do not."""
    return [
        [CallTool("look", {"what": PROMPT}), CallTool("look", {"for": KEY})],
        [Say(f"Your {FLOWER}: {KEY}")],
        [Refuse(503, "overloaded"), Say(FLOWER)],
        [Refuse(400, "too many flowers")],
        [CallTool("crash", {"what": PROMPT})],
        [Say(FLOWER), Pause(gate)],
    ]


@BOTH
async def test_neither_prompts_nor_answers_are_ever_logged(form):
    gate, stream = Gate("speaking"), io.StringIO()
    parts = iter(answers(gate))
    title = [Say(f"About a {FLOWER}")]
    model = ScriptedProvider(lambda asked: next(parts) if asked.tools else title)
    tools = {"look": ScriptedTool("look"), "crash": ScriptedTool("crash", crash)}
    agent = ScriptedAgent(model, tools, titles=True)

    def make_turn(transcript):
        return agent.make_turn(transcript, transcript.store, CountingIds("turn"))

    with open_log(form, LogLevel.DEBUG, stream=stream):
        async with open_test_server(make_turn) as server:
            place = await server.create(A)
            session = await place.create_session(PROMPT)
            with await place.watch(A) as seen:
                for _ in range(3):
                    await place.submit(session, PROMPT)
                    await seen.until(lambda event: event["type"] == "run_complete")
                await place.submit(session, PROMPT)
                await gate.reached()
                await place.submit(session, PROMPT, "r2")
                await place.cancel(session)
                await wait_all_tasks_blocked()
                await leave_traces(server, place, session)
        assert next(parts, None) is None
    text = stream.getvalue()
    for event in ("provider.retry", "run.failed", "run.acceptance_not_stored", "request.failed"):
        assert event in text
        told = [line for line in text.splitlines() if event in line]
        assert all("workspace_id" in line for line in told), "each says whose it is"
    assert FLOWER not in text
    assert KEY not in text


async def leave_traces(server, place, session):
    """Say it once more in every way that is refused."""
    fault = StoreFault(of=(RunAccepted,), error=lambda: DiskFull("x"), times=1)
    server.stores.of().spoil(fault)
    assert (await place.submit(session, PROMPT)).status == 507
    assert (await place.submit("", PROMPT)).status == 400
    broken = json.dumps({"session_id": session, "prompt": [PROMPT]}).encode()
    assert (await place.request("POST", "/agent", broken)).status == 400
    assert (await place.request("POST", "/agent", PROMPT.encode())).status == 400
    headers = [("origin", "https://example.com")]
    refused = await server.driver.request("GET", "/v1/health", headers=headers)
    assert refused.status == 403


@pytest.mark.slow
def test_a_server_process_writes_nothing_but_objects_to_its_log(tmp_path):
    token = "a-token-of-enough-characters"
    options = ("--host", "tcp://127.0.0.1:0", "--log-format", "json", "--log-level", "debug")
    with subprocess.Popen(
        [sys.executable, "-m", "crush_trio", "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "CRUSH_TRIO_TOKEN": token},
        text=True,
        cwd=tmp_path,
    ) as process:
        try:
            port = int(re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
            assert ask(port, {}) == 401
            assert ask(port, {"Authorization": f"Bearer {token}"}) == 200
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=30)
        finally:
            process.kill()
    names = [json.loads(line)["event"] for line in log.splitlines()]
    assert names[0] == "server.started"
    assert "request.refused" in names
    assert names[-1] == "server.stopped"
    assert token not in log


def ask(port, headers):
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/v1/version", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()
