"""What probes see: whether the server is alive, and whether it should get new clients; and draining."""

import logging
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.cluster.node import Node
from crush_trio.config.errors import ConfigInvalid
from crush_trio.server.hosting.host import drain_runs, keep_reloading, reload_all
from crush_trio.server.run import Orders
from crush_trio.server.service_manager import ServiceManager
from crush_trio.server.settings import GuardSettings
from crush_trio.store.errors import StoreUnreachable
from crush_trio.store.shared import Beat
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.asgi import AsgiDriver
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say

A, B = client_id(1), client_id(2)
GUARDED = GuardSettings(token="a-token-of-enough-characters")
STRANGE_HOST = [("host", "10.0.0.7:8765")]
FOREIGN_PAGE = [("host", "evil.example"), ("origin", "https://evil.example")]


def over_tcp(server):
    """Return a driver whose requests come through an address that other machines can reach."""

    async def app(scope, receive, send):
        await server.driver.app({**scope, "server": ("10.0.0.7", 8765)}, receive, send)

    return AsgiDriver(app, server.driver.nursery)


def code(answer):
    return answer.json()["code"]


async def test_a_server_is_alive_and_ready_without_a_token_and_without_a_warning(caplog):
    async with open_test_server(guard=GUARDED) as server:
        for path in ("/v1/health", "/v1/ready"):
            for headers in ([], STRANGE_HOST):
                answer = await over_tcp(server).request("GET", path, headers=headers)
                assert (answer.status, answer.body) == (200, b"")
    assert caplog.records == []


async def test_a_page_of_another_host_is_not_a_probe():
    async with open_test_server() as server:
        answer = await over_tcp(server).request("GET", "/v1/ready", headers=FOREIGN_PAGE)
        assert (answer.status, code(answer)) == (403, "host_forbidden")


async def test_another_route_is_not_open_to_a_strange_host():
    async with open_test_server() as server:
        answer = await over_tcp(server).request("GET", "/v1/version", headers=STRANGE_HOST)
        assert (answer.status, code(answer)) == (403, "host_forbidden")


async def test_a_server_with_a_degraded_store_or_audit_is_alive_and_not_ready(caplog, monkeypatch):
    async with open_test_server() as server:
        await server.create(A)
        [hosted] = server.backend.workspaces()
        with monkeypatch.context() as patch:
            patch.setattr(type(hosted.store), "degraded", "the disk is full: /secret/path")
            answer = await server.request("GET", "/v1/ready")
            assert (answer.status, code(answer)) == (503, "not_ready")
            assert b"/secret" not in answer.body
            assert (await server.request("GET", "/v1/health")).status == 200
        assert (await server.request("GET", "/v1/ready")).status == 200
        server.server.audit.problem = "/secret/audit: Permission denied"
        assert (await server.request("GET", "/v1/ready")).status == 503
    assert [each for each in caplog.records if each.msg.startswith("request.")] == []


async def test_what_is_wrong_is_told_to_who_has_the_token_only():
    async with open_test_server(guard=GUARDED) as server:
        server.server.audit.problem = "/secret/audit: Permission denied"
        stranger = await server.driver.request("GET", "/v1/health")
        assert (stranger.status, stranger.body) == (200, b"")
        proof = [("authorization", f"Bearer {GUARDED.token}")]
        known = await server.driver.request("GET", "/v1/health", headers=proof)
        assert "/secret/audit" in known.json()["problems"][0]["message"]


async def test_a_node_that_cannot_reach_the_database_is_not_ready_though_nothing_is_open(caplog):
    caplog.set_level(logging.INFO, "crush_trio.backend.cluster.node")
    shared = Database()
    async with open_test_server(guard=GUARDED) as server:
        node = Node(shared, server.server.backend._clock)
        server.server.cluster = SimpleNamespace(node=node)
        proof = [("authorization", f"Bearer {GUARDED.token}")]

        async def problems():
            answer = await server.driver.request("GET", "/v1/health", headers=proof)
            return [each["code"] for each in answer.json()["problems"]] if answer.body else []

        for shared.away, ready, told in [
            *((False, 200, []), (True, 503, ["not_renewed"]), (True, 503, ["not_renewed"])),
            (False, 200, []),
        ]:
            assert await node._beat(0.0) is not shared.away
            assert (await server.request("GET", "/v1/ready")).status == ready
            assert await problems() == told
        server.server.cluster = None
    told = [each.msg for each in caplog.records if each.msg.startswith("node.")]
    assert told == ["node.not_renewed", "node.renewed"], "once each, however long it takes"


class Database:
    """What a node asks of its shared store, if it holds no lease."""

    away = False

    async def beat(self, leases, watched):
        await trio.lowlevel.checkpoint()
        if self.away:
            raise StoreUnreachable("no route")
        return Beat(own=frozenset(), watched={})


# ── Draining ────────────────────────────────────────────────────────────────────────────────────


async def test_while_draining_accepted_runs_finish_and_nothing_new_begins():
    gate = Gate()
    async with open_test_server(WrittenTurns({"long": [Pause(gate), Say("done")]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        assert (await place.submit(session, "long", "r1")).status == 202
        assert (await place.submit(session, "next", "r2")).status == 202
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain_runs, server.server, 3600, trio.Event())
            await wait_all_tasks_blocked()
            assert code(await server.request("GET", "/v1/ready")) == "server_shutting_down"
            assert (await server.request("GET", "/v1/health")).status == 200
            refused = await place.submit(session, "new", "r3")
            assert (refused.status, code(refused)) == (503, "server_shutting_down")
            assert (await place.submit(session, "long", "r1")).status in {200, 202}
            for path in ("/srv/project", "/srv/other"):
                body = {"path": path, "client_id": B}
                created = await server.request("POST", "/v1/workspaces", body)
                assert (created.status, code(created)) == (503, "server_shutting_down")
            assert server.server.meters.live_runs == 2
            gate.open()
        runs = (await place.request("GET", "/runs")).json()
        assert {run["run_id"]: run["state"] for run in runs} == {
            "r1": "completed",
            "r2": "completed",
        }


@pytest.mark.parametrize("hurried", [True, False])
async def test_a_drain_ends_with_its_time_or_a_second_signal(hurried):
    hurry = trio.Event()
    async with open_test_server(WrittenTurns({"long": [Pause(Gate())]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        await place.submit(session, "long", "r1")
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain_runs, server.server, 20, hurry)
            if hurried:
                await trio.sleep(7)
                hurry.set()
        assert trio.current_time() - begun == pytest.approx(7 if hurried else 20)
        assert server.server.meters.live_runs == 1


async def test_a_server_without_runs_has_nothing_to_wait_for():
    async with open_test_server() as server:
        begun = trio.current_time()
        await drain_runs(server.server, 60, trio.Event())
        assert trio.current_time() == begun


# ── Reloading ───────────────────────────────────────────────────────────────────────────────────


async def test_an_order_to_reload_reads_every_configuration_and_one_that_is_wrong_changes_nothing(
    caplog, monkeypatch
):
    read = []

    async def reload(config):
        await trio.lowlevel.checkpoint()
        read.append(config)
        if len(read) == 1:
            raise ConfigInvalid("crush.json")

    async with open_test_server() as server, trio.open_nursery() as nursery:
        await server.create(A, "/srv/one")
        await server.create(A, "/srv/two")
        for hosted in server.backend.workspaces():
            monkeypatch.setattr(type(hosted.config), "reload", reload)
        orders = Orders()
        nursery.start_soon(keep_reloading, server.server, orders, ServiceManager())
        await wait_all_tasks_blocked()
        for expected in (2, 4):
            orders.reload()
            await wait_all_tasks_blocked()
            assert len(read) == expected
        nursery.cancel_scope.cancel()
    events = [each.msg for each in caplog.records if each.msg.startswith("config.")]
    assert events == ["config.not_reloaded"]


async def test_without_workspaces_there_is_nothing_to_reload():
    await reload_all(())
