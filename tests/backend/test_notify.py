"""What people who are away are told: a permission or an answer is needed, a run has ended."""

import logging
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
import trio
from attrs import define, evolve, field
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from crush_trio.backend.notify import AT_ONCE, MOST_WAITING, Notification, open_notifier
from crush_trio.clock import TrioClock
from crush_trio.config.files import NotifyConfig, NotifyEvent
from crush_trio.config.fixed import FixedConfig, load_fixed
from crush_trio.config.sources import Places
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.server import WrittenTurns, open_test_server
from crush_trio.testing.server.turns import Do, Fail, Say
from crush_trio.tools.shell.process import CommandEnd, open_process_group
from tests.server.asker import A, of_type, open_room, payload

REQUEST = of_type("permission_request")


class Inbox:
    """The standard input of a command."""

    def __init__(self, programs):
        self.programs = programs

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await trio.lowlevel.checkpoint()

    async def send_all(self, data):
        await trio.lowlevel.checkpoint()
        self.programs.told.append(orjson.loads(data))


@define(eq=False)
class Programs:
    """Satisfies `OpenCommand`: each command takes some time and ends with a status."""

    seconds: float = 0
    status: int = 0
    told: list = field(factory=list)
    running: int = 0
    most: int = 0
    commands: list = field(factory=list)

    @property
    def stdin(self):
        return Inbox(self)

    @asynccontextmanager
    async def __call__(self, command, *, clock, stdin, stdout, stderr, grace, on_ended):
        await trio.lowlevel.checkpoint()
        self.commands.append(command)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield self
        finally:
            self.running -= 1
            on_ended(CommandEnd(exit_code=self.status, started_at=0, ended_at=0))

    async def wait(self):
        await trio.sleep(self.seconds)


def listen(opened, programs=None, **config):
    """Have an open workspace tell *programs* what happens."""
    programs = Programs() if programs is None else programs
    notify = NotifyConfig(command="tell-me", **config)
    opened.config.current = evolve(opened.config.current, notify=notify)
    opened.notifier.opens = programs
    return programs


async def test_a_person_who_is_needed_is_told_for_what_and_where():
    async with open_room() as room:
        programs = listen(room.opened, events=(NotifyEvent.NEEDS_PERSON,))
        room.opened.notifier.page = "https://example.org/"
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            permission = payload(await a.until(REQUEST))
            await wait_all_tasks_blocked()
            run = await room.get("/runs/r1")
            [told] = programs.told
            assert told == {
                "event": "needs_person",
                "workspace": room.place.id,
                "path": "/srv/project",
                "session_id": room.session,
                "title": "a session",
                "run_id": run["id"],
                "state": "active",
                "tool_name": "bash",
                "description": permission["description"],
                "url": f"https://example.org/w/{room.place.id}/s/{room.session}",
            }
            assert programs.commands[0].argv[-1] == "tell-me"
            await room.grant(permission)
            await wait_all_tasks_blocked()
        assert len(programs.told) == 1, "the end was not to be told"


async def test_a_question_is_told_with_its_text():
    async with open_room() as room:
        programs = listen(room.opened, events=(NotifyEvent.NEEDS_PERSON,))
        with await room.place.watch(A) as a:
            await room.submit("ask", "r1")
            asked = payload(await a.until(of_type("question_batch_request")))
            await wait_all_tasks_blocked()
        assert programs.told[0]["tool_name"] == "question"
        assert programs.told[0]["description"] == asked["questions"][0]["question"]


async def test_the_end_of_a_run_is_told_once_with_its_state():
    turns = WrittenTurns({"fail": [Fail(ValueError("no such file"))], "go": [Say("done")]})
    async with open_test_server(turns) as server:
        place = await server.create(A)
        session = await place.create_session()
        programs = listen(server.server.workspace(place.id))
        for text in ("go", "fail"):
            for _ in range(2):
                await place.submit(session, text, text)
            await wait_all_tasks_blocked()
        ends = [(told["event"], told["state"], told["description"]) for told in programs.told]
    assert ends == [
        ("run_ended", "completed", "done"),
        ("run_ended", "errored", "no such file"),
    ]


async def test_a_run_never_waits_for_a_command_that_is_too_slow(caplog):
    async with open_test_server(WrittenTurns({"go": [Say("done")]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        programs = listen(server.server.workspace(place.id), Programs(seconds=1000))
        await place.submit(session, "go", "r1")
        await wait_all_tasks_blocked()
        assert (await place.request("GET", "/runs/r1")).json()["state"] == "completed"
        assert programs.running == 1
        await trio.sleep(11)
        assert programs.running == 0
    [line] = [r.getMessage() for r in caplog.records if r.name == "crush_trio.backend.notify"]
    assert line == "notify.failed: command: it took longer than 10 seconds"


async def test_the_end_of_the_last_run_is_told_although_the_workspace_closes():
    async def leave(_run):
        await place.request("DELETE", f"?client_id={A}")

    async with open_test_server(WrittenTurns({"go": [Do(leave), Say("done")]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        programs = listen(server.server.workspace(place.id), Programs(seconds=1000))
        began = trio.current_time()
        await place.submit(session, "go", "r1")
        await wait_all_tasks_blocked()
        assert [told["state"] for told in programs.told] == ["cancelled"]
        await trio.sleep(4)
        assert server.backend.workspaces() == ()
        assert (programs.running, trio.current_time() - began) == (0, 4)


async def test_without_a_command_or_a_webhook_nothing_is_called():
    async with open_room() as room:
        programs = listen(room.opened)
        room.opened.config.current = evolve(room.opened.config.current, notify=NotifyConfig())
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            await room.grant(payload(await a.until(REQUEST)))
            await wait_all_tasks_blocked()
        assert programs.commands == []


# ── The notifier alone ──────────────────────────────────────────────────────────────────────────

NOTE = Notification(event=NotifyEvent.RUN_ENDED, workspace="w", path="/p", session_id="gone")


@asynccontextmanager
async def alone(programs=None, dial=None, directory="/p", **config):
    live = FixedConfig(await load_fixed(Places(directory=Path("/p"), home=Path("/h"))))
    live.current = evolve(live.current, notify=NotifyConfig(**config))
    async with open_notifier(
        workspace_id="w",
        directory=Path(directory),
        live=live,
        store=MemoryStore("boot"),
        clock=TrioClock(),
        opens=programs,
        dial=dial,
    ) as notifier:
        yield notifier


async def test_few_are_told_at_once_and_a_flood_is_cut(caplog):
    programs = Programs(seconds=1)
    async with alone(programs, command="x") as notifier:
        for _ in range(MOST_WAITING + 5):
            notifier.tell(NOTE)
        await trio.sleep(60)
        assert (len(programs.told), programs.most) == (MOST_WAITING, AT_ONCE)
        assert [r.getMessage() for r in caplog.records].count("notify.dropped") == 5
        notifier.tell(NOTE)
        await trio.sleep(2)
        assert len(programs.told) == MOST_WAITING + 1
    assert programs.told[0]["title"] == "", "its session is gone"


@pytest.mark.real_clock
async def test_a_real_command_gets_it_on_its_standard_input(tmp_path):
    command = "cat > part && mv part told.json"
    async with alone(open_process_group, directory=tmp_path, command=command) as notifier:
        notifier.tell(NOTE)
    told = orjson.loads((tmp_path / "told.json").read_bytes())
    assert (told["event"], told["path"]) == ("run_ended", "/p")


@pytest.mark.parametrize("error", [OSError("no shell"), RuntimeError("a bug")])
async def test_whatever_goes_wrong_the_workspace_goes_on(error, caplog):
    def broken(_command, **_settings):
        raise error

    async with alone(broken, command="x") as notifier:
        notifier.tell(NOTE)
        await wait_all_tasks_blocked()
        notifier.tell(NOTE)
        await wait_all_tasks_blocked()
    assert [r.getMessage() for r in caplog.records] == [f"notify.failed: command: {error}"] * 2


async def test_a_command_that_fails_is_one_line_of_the_log(caplog):
    async with alone(Programs(status=3), command="x") as notifier:
        notifier.tell(NOTE)
        await wait_all_tasks_blocked()
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "notify.failed: command: it ended with 3")
    ]


@pytest.mark.parametrize(
    ("status", "said"),
    [("204 No Content", []), ("500 No", ["notify.failed: webhook: hooks.test answered 500"])],
)
async def test_a_webhook_gets_the_same_as_the_body_of_a_post(status, said, caplog):
    heard = bytearray()

    async def serve(stream):
        async with stream:
            while not heard.endswith(b"}"):
                heard.extend(await stream.receive_some())
            await stream.send_all(f"HTTP/1.1 {status}\r\nconnection: close\r\n\r\n".encode())

    async with trio.open_nursery() as nursery:

        async def dial(_origin):
            await trio.lowlevel.checkpoint()
            ours, theirs = memory_stream_pair()
            nursery.start_soon(serve, theirs)
            return ours

        async with alone(dial=dial, webhook="http://hooks.test/team/sEcReT?x=1") as notifier:
            notifier.tell(NOTE)
            await wait_all_tasks_blocked()
    head, _, body = bytes(heard).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /team/sEcReT?x=1 HTTP/1.1\r\n")
    assert b"content-type: application/json" in head.lower()
    told = orjson.loads(body)
    assert (told["event"], told["url"]) == ("run_ended", "/w/w/s/gone")
    assert [r.getMessage() for r in caplog.records] == said, "or the address is in the log"


async def test_a_webhook_that_cannot_be_reached_is_one_line_of_the_log(caplog):
    async def dial(_origin):
        await trio.lowlevel.checkpoint()
        raise OSError("no route to host")

    async with alone(dial=dial, webhook="http://hooks.test/sEcReT") as notifier:
        notifier.tell(NOTE)
        await wait_all_tasks_blocked()
    [line] = [r.getMessage() for r in caplog.records]
    assert "no route to host" in line
    assert "sEcReT" not in line
