"""What a scrape says, and that it is true: live numbers, counts that never go back, bounded labels."""

import subprocess
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as read_openmetrics,
)
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.settings import BackendSettings
from crush_trio.server.app import create_app
from crush_trio.server.server import Meters, Server
from crush_trio.server.sse import Streams
from crush_trio.store.base import COMMIT_BOUNDS, StoreLoad, Timings
from crush_trio.store.changes import RunAccepted, RunEnded
from crush_trio.store.errors import DiskFull
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.asgi import AsgiDriver
from crush_trio.testing.server.faulty_store import StoreFault
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Do, Fail, Pause, Say, Sleep
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.machine import Approval
from crush_trio.tools.sandbox.settings import CommandSandbox
from tests.server.in_process import open_site
from tests.server.scraping import Scrape, scrape

A = client_id(1)


def ended(event):
    return event["type"] == "run_complete"


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────────


async def test_runs_are_shown_by_what_they_do_now():
    gate = Gate("thinking")
    turns = WrittenTurns({"think": [Pause(gate)]})
    async with open_test_server(turns) as server:
        place = await server.create(A)
        busy, free = await place.create_session(), await place.create_session()
        await place.submit(busy, "think")
        await gate.reached()
        for name in ("r1", "r2"):
            await place.submit(busy, "hello", name)
        await place.submit(free, "think")
        await gate.reached(2)
        seen = await scrape(server)
        assert [seen.value("runs", state=s) for s in ("accepted", "queued", "active")] == [0, 2, 2]
        assert (seen.value("queue_depth"), seen.value("queue_depth_max")) == (2, 2)
        assert seen.value("runs_accepted_total") == 4
        assert seen.ended() == {}
        gate.open()
        with await place.watch(A):
            await wait_all_tasks_blocked()
        seen = await scrape(server)
        assert seen.value("runs", state="active") == 0
        assert seen.ended() == {"completed": 4}


async def test_every_ending_is_counted_once_by_how_it_was():
    gate = Gate("thinking")
    turns = WrittenTurns(
        {"fail": [Fail(RuntimeError("no"))], "think": [Say("Hm"), Pause(gate)], "wait": [Sleep(30)]}
    )
    async with open_test_server(turns) as server:
        place = await server.create(A)
        session = await place.create_session()
        with await place.watch(A) as events:
            for prompt in ("hello", "fail", "wait"):
                await place.submit(session, prompt, prompt)
                await events.until(ended)
            await place.submit(session, "think", "r1")
            await gate.reached()
            await place.submit(session, "hello", "r2")
            await place.cancel(session)
            await events.until(ended)
        seen = await scrape(server)
    assert seen.ended() == {"completed": 2, "errored": 1, "cancelled": 2}
    assert seen.value("run_seconds_count", outcome="completed") == 2
    assert seen.value("run_seconds_sum", outcome="completed") == 30
    assert seen.value("run_seconds_bucket", outcome="completed", le="15.0") == 1
    assert seen.value("run_seconds_bucket", outcome="completed", le="60.0") == 2
    assert seen.value("run_seconds_count", outcome="cancelled") == 1  # the other never was active
    assert seen.value("cancel_seconds_count") == 2


async def test_a_cancel_is_timed_to_the_end_of_the_run_and_from_the_first_cancel():
    gate = Gate("stubborn")

    async def tidy_up(_run):
        try:
            await gate.wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_test_server(WrittenTurns({"go": [Do(tidy_up)]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        with await place.watch(A) as events:
            await place.submit(session, "go", "r1")
            await gate.reached()
            await place.cancel(session)
            await trio.sleep(1)
            await place.cancel(session)
            await events.until(ended)
        seen = await scrape(server)
    assert (seen.value("cancel_seconds_count"), seen.value("cancel_seconds_sum")) == (1, 2)


async def test_a_folded_prompt_is_an_ending_of_its_own():
    gate = Gate("step")

    async def take_in(run):
        await gate.wait()
        await run.fold()

    async with open_test_server(WrittenTurns({"go": [Do(take_in), Say("both")]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        with await place.watch(A) as events:
            await place.submit(session, "go", "r1")
            await gate.reached()
            await place.submit(session, "and this")
            gate.open()
            await events.until(ended)
        assert (await scrape(server)).ended() == {"completed": 1, "folded": 1}


async def test_a_run_that_could_not_be_stored_is_no_ending():
    faults = [StoreFault(of=(RunAccepted,), error=lambda: DiskFull("x"), times=1)]
    async with open_test_server(faults=faults) as server:
        place = await server.create(A)
        answer = await place.submit(await place.create_session(), "hello", "r1")
        assert answer.status == 507
        seen = await scrape(server)
        assert seen.value("runs_accepted_total") == 1
        assert seen.value("runs_not_stored_total") == 1
        assert seen.ended() == {}


# ── Workspaces that come and go ─────────────────────────────────────────────────────────────────────


async def closed(server, place):
    """Have the last client leave, and wait until the workspace has closed."""
    await place.request("DELETE", f"?client_id={A}")
    await trio.sleep(30)  # more than closing may take, on a virtual clock
    assert server.backend.idle


async def test_counts_outlive_their_workspace_and_never_go_back():
    gate = Gate("thinking")
    turns = WrittenTurns({"think": [Pause(gate)]})
    settings = BackendSettings(detach_grace=0)
    async with open_test_server(turns, settings=settings) as server:
        place = await server.create(A)
        session = await place.create_session()
        await place.submit(session, "hello", "r1")
        await place.submit(session, "think", "r2")
        await gate.reached()
        before = await scrape(server)
        assert before.value("workspaces") == 1
        assert before.value("events_published_total") > 0
        await closed(server, place)
        after = await scrape(server)
    assert after.value("workspaces") == 0
    assert after.ended() == {"completed": 1, "cancelled": 1}  # the latter while it closed
    assert {key for key, value in before.counts().items() if after.counts()[key] < value} == set()
    assert after.value("events_published_total") > before.value("events_published_total")


class Thing(SimpleNamespace):
    __hash__ = object.__hash__


def test_the_commits_of_a_store_that_has_closed_are_still_counted():
    meters, commits = Meters(), Timings(COMMIT_BOUNDS)
    thing = Thing(
        recovered=(),
        runs=SimpleNamespace(),
        events=SimpleNamespace(head=7),
        store=SimpleNamespace(load=StoreLoad(commits=commits)),
        agent=SimpleNamespace(sandbox=CommandSandbox()),
    )
    with meters.following(thing):
        commits.note(0.2)
        assert (meters.events, sum(meters.commits.counts)) == (7, 1)
        commits.note(0.2)  # while it closes
    assert (meters.events, sum(meters.commits.counts)) == (7, 2)
    assert meters.commits.total == pytest.approx(0.4)


async def test_the_sandbox_and_the_commands_it_held_are_shown_also_after_a_workspace_has_closed():
    async with open_test_server() as server:
        place = await server.create(A)
        [machine] = server.server.meters.machines
        machine.found = SandboxKind.LANDLOCK
        machine.commands[SandboxKind.LANDLOCK, Approval.UNASKED] += 2
        await closed(server, place)
        seen = await scrape(server)
    assert {kind: seen.value("sandbox", kind=kind) for kind in SandboxKind} == {
        "bubblewrap": 0,
        "landlock": 1,
        "none": 0,
    }
    assert seen.value("commands_total", sandbox="landlock", approval="unasked") == 2


async def test_runs_that_a_start_finds_interrupted_have_ended():
    faults = [StoreFault(of=(RunEnded,), error=lambda: DiskFull("x"))]
    async with open_test_server(faults=faults) as server:
        place = await server.create(A)
        await place.submit(await place.create_session(), "hello", "r1")
        await wait_all_tasks_blocked()
        assert (await scrape(server)).ended() == {}
        await closed(server, place)
        assert (await scrape(server)).ended() == {"interrupted": 1}, "the store was given up"
        server.stores.faults = ()
        await server.create(A)
        await wait_all_tasks_blocked()
        assert (await scrape(server)).ended() == {"interrupted": 2}


async def test_a_store_in_trouble_is_counted_until_it_has_recovered():
    async with open_test_server() as server:
        place = await server.create(A)
        assert (await scrape(server)).value("stores_degraded") == 0
        server.stores.of().spoil(StoreFault(error=lambda: DiskFull("x"), times=1))
        await place.request("POST", "/sessions", {"title": "a"})
        assert (await scrape(server)).value("stores_degraded") == 1
        await place.create_session()
        assert (await scrape(server)).value("stores_degraded") == 0


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_is_counted_while_it_is_attached():
    async with open_test_server() as server:
        place = await server.create(A)
        with await place.watch(A), await place.watch(A):
            assert (await scrape(server)).value("streams") == 2
        await wait_all_tasks_blocked()
        assert (await scrape(server)).value("streams") == 0


async def test_the_lag_of_a_stream_is_what_it_has_not_read():
    """One client takes what it gets, another stops after the head."""
    async with open_test_server() as server, trio.open_nursery() as nursery:
        place = await server.create(A)
        stuck, nobody = Gate("stuck"), Gate("the client never leaves")

        async def send(event):
            await trio.lowlevel.checkpoint()
            if event["type"] == "http.response.body" and event["body"]:
                await stuck.wait()

        nursery.start_soon(call_raw, server, f"{place.path}/events?client_id={A}", nobody, send)
        await stuck.reached()
        with await place.watch(A):
            for title in "abc":
                await place.create_session(title)
            await trio.sleep(1)  # whoever reads has read
            seen = await scrape(server)
            assert seen.value("streams") == 2
            assert seen.value("stream_lag_events") == 3
            assert seen.value("stream_lag_events_max") == 3
        nursery.cancel_scope.cancel()


async def call_raw(server, target, gate, send):
    """Send a request as a server would, with *send* for its answer."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"local")],
        "client": None,
        "server": None,
        "state": {},
        "extensions": {},
    }

    async def receive():
        await gate.wait()

    await server.driver.app(scope, receive, send)


def test_streams_that_are_gone_have_no_lag():
    assert Streams().lags() == []


# ── The answer as a whole ───────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_busy_server():
    """Open a server in which everything has happened that makes a series appear."""
    async with open_test_server() as server:
        place = await server.create(A, "/srv/a-secret-project")
        session = await place.create_session("a secret title")
        with await place.watch(A) as events:
            await place.submit(session, "a secret prompt", "my-run")
            await events.until(ended)
            yield server, [place.id, session, A, "secret", "my-run"]


async def test_no_label_names_a_session_a_workspace_a_client_or_a_run():
    async with open_busy_server() as (server, words):
        text = (await scrape(server)).text
    assert [word for word in words if word in text] == []


async def test_a_scraper_that_asks_for_openmetrics_gets_it():
    async with open_busy_server() as (server, _):
        accept = ("accept", "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5")
        answer = await server.driver.request("GET", "/v1/metrics", headers=[accept])
        plain = await server.request("GET", "/v1/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")
    names = {family.name for family in read_openmetrics(answer.body.decode())}
    assert {"crush_trio_runs", "crush_trio_runs_ended", "process_open_fds"} <= names
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_two_servers_in_one_process_have_two_sets_of_numbers_and_share_none():
    async with open_test_server() as first, open_test_server() as second:
        await first.create(A)
        assert (await scrape(first)).value("workspaces") == 1
        assert (await scrape(second)).value("workspaces") == 0
    assert not any(name.startswith("crush_trio") for name in REGISTRY._names_to_collectors)


async def test_a_site_over_a_backend_of_somebody_elses_can_be_scraped():
    async with open_site() as site, trio.open_nursery() as nursery:
        assert isinstance(site, Server)
        answer = await AsgiDriver(create_app(site), nursery).request("GET", "/v1/metrics")
    assert Scrape(answer.body.decode()).value("runs_accepted_total") == 0


@pytest.mark.slow
def test_a_server_that_is_never_scraped_does_not_load_the_library():
    program = (
        "import crush_trio.server.hosting.host, sys; print('prometheus_client' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert ran.stdout == "False\n"
