"""A server starts when it is needed, belongs to nobody who needs it, and its failures are states."""

from pathlib import Path

import pytest
import trio

from crush_trio.integrations.lsp.connection import ConnectionLost
from crush_trio.integrations.lsp.server import LanguageServer
from crush_trio.integrations.lsp.session import ServerUnavailable
from crush_trio.wire.integrations import LspState
from tests.integrations.lsp_bench import FakeHost, open_server, spec

pytestmark = pytest.mark.item("I.4")

FILE = Path("/w/a.toy")


# ── Starting ────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_is_not_started_until_somebody_needs_it(autojump_clock):
    async with open_server() as (server, host):
        assert (server.state, host.programs.toys) == (LspState.UNSTARTED, [])
        session = await server.get_ready()
        assert session.can("renameProvider")
        assert not session.can("hoverProvider")
        assert server.info().state is LspState.READY
        assert server.info().connected_at != "0001-01-01T00:00:00Z"
        assert host.states() == ["STARTING", "READY"]


@pytest.mark.parametrize("seed", range(10))
async def test_many_who_need_it_at_once_start_it_once(seed):
    async with open_server() as (server, host):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(server.get_ready)
        assert len(host.programs.toys) == 1


@pytest.mark.item("T13")
@pytest.mark.parametrize("seed", range(10))
async def test_who_needed_it_may_be_cancelled_and_it_starts_all_the_same(seed):
    async with open_server() as (server, host):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.get_ready)
            while server.state is LspState.UNSTARTED:
                await trio.lowlevel.checkpoint()
            assert server.state is LspState.STARTING
            nursery.cancel_scope.cancel()
        await host.programs.news.until(lambda: server.state is LspState.READY)
        assert host.programs.running == 1


async def test_it_is_introduced_to_the_workspace_and_given_its_settings(autojump_clock):
    config = {"init_options": {"x": 1}, "options": {"toy": {"strict": True}}}
    async with open_server(**config) as (server, host):
        await server.get_ready()
        await host.programs.news.until(lambda: len(host.programs.toy.updates) == 3)
        (first, params), *rest = host.programs.toy.updates
        assert first == "initialize"
        assert params["rootUri"] == "file:///w"
        assert params["initializationOptions"] == {"x": 1}
        assert params["capabilities"]["general"] == {"positionEncodings": ["utf-16"]}
        assert rest == [
            ("initialized", {}),
            ("workspace/didChangeConfiguration", {"settings": {"toy": {"strict": True}}}),
        ]


@pytest.mark.parametrize(
    ("configured", "files", "limit"), [(0, 0, 30), (0, 2000, 90), (3, 2000, 3)]
)
async def test_a_server_that_does_not_get_ready_in_time_has_failed(
    autojump_clock, configured, files, limit
):
    async with open_server(timeout=configured) as (server, host):
        host.files = files
        host.programs.serve = _never_answers
        with pytest.raises(ServerUnavailable, match=f"not ready within {limit} seconds"):
            await server.get_ready()
        assert trio.current_time() == pytest.approx(limit)
        assert host.programs.running == 0
        assert host.states() == ["STARTING", "ERROR"]


async def _never_answers(_toy, _far):
    await trio.sleep_forever()


async def test_why_it_could_not_be_started_is_told_without_secrets(autojump_clock):
    async with open_server() as (server, host):
        host.fails = OSError(2, "hush: no such file")
        with pytest.raises(ServerUnavailable):
            await server.get_ready()
        assert server.error == "it could not be started: [redacted]: no such file"
        assert host.told[-1].error == server.error


async def test_a_mistake_of_ours_is_a_failure_of_the_server_only(autojump_clock):
    async with open_server() as (server, host):
        host.fails = ZeroDivisionError()
        with pytest.raises(ServerUnavailable, match="it failed: ZeroDivisionError"):
            await server.get_ready()


# ── Failing ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_crash_is_a_state_and_after_a_pause_it_is_started_anew(autojump_clock):
    async with open_server(args=("--crash-on-open",)) as (server, host):
        host.programs.words = "the toy broke"
        session = await server.get_ready()
        session.documents.show(FILE, "x")
        await host.programs.news.until(lambda: server.state is LspState.ERROR)
        assert server.error == "it has ended: the toy broke"
        assert (server.info().diagnostic_count, server.session) == (0, None)
        failed = trio.current_time()
        with pytest.raises(ServerUnavailable, match="it has ended"):
            await server.get_ready()
        assert len(host.programs.toys) == 1
        await trio.sleep_until(failed + 30.1)
        await server.get_ready()
        assert (len(host.programs.toys), host.programs.running) == (2, 1)


async def test_a_program_that_ends_before_it_is_ready_has_failed(autojump_clock):
    async with open_server() as (server, host):
        host.programs.serve = _leaves
        with pytest.raises(ServerUnavailable, match="it has ended"):
            await server.get_ready()


async def _leaves(_toy, far):
    await far.stream.aclose()


@pytest.mark.parametrize("seed", range(10))
async def test_a_crash_ends_the_requests_that_wait(seed):
    async with open_server() as (server, host):
        session = await server.get_ready()
        toy = host.programs.toy
        toy.handle = lambda _: setattr(toy, "ended", True) or []
        with pytest.raises(ConnectionLost):
            await session.request("never/answered", None)
        await host.programs.news.until(lambda: server.state is LspState.ERROR)


# ── Stopping ────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_is_asked_to_end_before_it_is_made_to(autojump_clock):
    async with open_server() as (server, host):
        await server.get_ready()
        life = server.stop()
        assert server.state is LspState.STOPPED
        await life.ended.wait()
        assert [method for method, _ in host.programs.toy.updates][-2:] == ["shutdown", "exit"]
        assert host.programs.running == 0
        assert host.states() == ["STARTING", "READY", "STOPPED"]


async def test_one_that_does_not_listen_gets_a_second(autojump_clock):
    async with open_server() as (server, host):
        await server.get_ready()
        host.programs.toy.on_shutdown = lambda _: trio.sleep_forever
        host.programs.toy.handle = lambda _: []
        before = trio.current_time()
        await server.stop().ended.wait()
        assert trio.current_time() - before == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(20))
async def test_one_that_is_starting_is_stopped_at_once(seed):
    async with open_server() as (server, host):
        host.programs.serve = _never_answers
        server.ensure_started()
        for _ in range(seed % 4):
            await trio.lowlevel.checkpoint()
        life = server.stop()
        await life.ended.wait()
        assert trio.current_time() < 1
        assert (server.state, host.programs.running) == (LspState.STOPPED, 0)


async def test_one_that_was_stopped_is_started_only_if_somebody_asks(autojump_clock):
    async with open_server() as (server, host):
        server.stop()
        with pytest.raises(ServerUnavailable, match="stopped"):
            await server.get_ready()
        server.ensure_started(asked=True)
        await server.get_ready()
        assert len(host.programs.toys) == 1


@pytest.mark.parametrize("seed", range(10))
async def test_a_restart_ends_one_life_before_it_begins_another(seed):
    async with open_server() as (server, host):
        await server.get_ready()
        await server.restart()
        assert (len(host.programs.toys), host.programs.running) == (2, 1)
        assert host.states() == ["STARTING", "READY", "STOPPED", "STARTING", "READY"]


async def test_a_restart_does_not_wait_for_the_pause_to_pass(autojump_clock):
    async with open_server() as (server, host):
        host.fails = OSError(2, "no")
        await server.restart()
        assert server.state is LspState.ERROR
        host.fails = None
        await server.restart()
        assert server.state is LspState.READY
        assert trio.current_time() < 1


async def test_closing_leaves_nothing_even_if_it_is_cancelled(autojump_clock):
    with trio.CancelScope() as scope:
        async with open_server() as (server, host):
            await server.get_ready()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert host.programs.running == 0


# ── Being disabled, and being heard ─────────────────────────────────────────────────────────────


async def test_one_that_is_disabled_is_never_started(autojump_clock):
    async with open_server(disabled=True) as (server, host):
        server.ensure_started(asked=True)
        await server.restart()
        with pytest.raises(ServerUnavailable, match="disabled"):
            await server.get_ready()
        assert (server.state, host.programs.toys) == (LspState.DISABLED, [])


async def test_one_that_must_not_be_started_says_why(autojump_clock):
    async with trio.open_nursery() as tasks:
        host = FakeHost(tasks)
        refused = spec()
        server = LanguageServer(
            type(refused)(name="x", config=refused.config, refused="not trusted"), host
        )
        server.ensure_started(asked=True)
        assert server.info().error == "not trusted"
        assert (server.state, host.programs.toys) == (LspState.DISABLED, [])


async def test_clients_hear_how_many_diagnostics_there_are_but_not_every_time(autojump_clock):
    async with open_server() as (server, host):
        session = await server.get_ready()
        for count in range(1, 40):
            session.documents.show(Path(f"/w/{count}.toy"), "BAD")
        await trio.sleep(1)
        counts = [each.diagnostic_count for each in host.told if each.type == "diagnostics_changed"]
        assert counts[-1] == 39
        assert len(counts) < 10
        assert server.info().diagnostic_count == 39
        session.documents.show(Path("/w/1.toy"), "BAD again")
        await trio.sleep(1)
        assert len([each for each in host.told if each.type == "diagnostics_changed"]) == len(
            counts
        )
