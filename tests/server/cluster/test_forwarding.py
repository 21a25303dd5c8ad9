"""Requests to a workspace whose owner is gone: which are repeated at the next one, and what is logged."""

import socket
from functools import partial
from urllib.parse import urlsplit

import pytest
import trio

from benchmarks.driver.tcp_proxy import open_proxy
from crush_trio.net.address import Origin
from crush_trio.net.dial import Dialer
from crush_trio.server.cluster.peers import SILENT_SECONDS, attentive
from tests.server.cluster.ghosts import open_haunted_node
from tests.server.cluster.nodes import (
    TOKEN,
    A,
    Place,
    open_node_server,
    open_two_nodes,
    project,
)
from tests.store.postgres.server import new_database

pytestmark = pytest.mark.real_clock


@pytest.mark.parametrize("target", ["/runs/r1", "/runs/its-id", "/agent/sessions/{sid}"])
async def test_a_cancel_whose_owner_died_over_it_is_answered_by_the_next_owner(tmp_path, target):
    async with open_haunted_node(new_database(), tmp_path) as (place, ghost):
        [session] = (await place.ask("GET", "/sessions")).json()
        target = f"{target.format(sid=session['id'])}/cancel?receipt=1"
        answer = await place.ask("POST", target)
        assert (answer.status, answer.json()["complete"]) == (200, True), answer
        [hit] = answer.json()["hits"]
        assert (hit["id"], hit["run_id"], hit["ended"]) == ("its-id", "r1", "interrupted")
        assert target.encode() in ghost.heard[-1]


async def test_what_may_have_been_carried_out_is_not_repeated(tmp_path):
    async with open_haunted_node(new_database(), tmp_path) as (place, _):
        answer = await place.ask("POST", "/sessions", {"title": "t"})
        assert (answer.status, answer.json()["code"]) == (502, "forward_lost")


async def test_a_herd_that_finds_the_owner_gone_is_logged_once(tmp_path, caplog):
    caplog.set_level("INFO", logger="crush_trio")
    async with open_haunted_node(new_database(), tmp_path) as (place, _):
        answers = []

        async def ask():
            answers.append((await place.ask("GET", "/config")).status)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert answers == [200] * 20
        events = [record.getMessage() for record in caplog.records]
        assert events.count("owner.gone") == events.count("workspace.reopened") == 1


async def test_a_body_that_is_announced_as_too_large_is_refused_before_it_has_come(tmp_path):
    async with open_two_nodes(new_database(), tmp_path) as (first, second):
        place = await first.create(project(tmp_path))
        head = (
            f"POST /v1/workspaces/{place.id}/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: 500000000\r\n\r\n"
        )
        stream = await trio.open_tcp_stream("127.0.0.1", second.port)
        async with stream:
            await stream.send_all(head.encode())
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 413")


STRANGE = b"HTTP/1.1 %b\r\ncontent-length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    "status", ["200 OK", "202 Accepted", "401 No", "404 No", "421 No", "500 No"]
)
async def test_what_a_stranger_at_the_address_of_the_owner_says_is_not_passed_back(
    tmp_path, status
):
    answer = STRANGE % status.encode()
    async with open_haunted_node(new_database(), tmp_path, answer=answer) as (place, ghost):
        [session] = (await place.ask("GET", "/sessions")).json()
        await place.submit(session["id"], "hello", run_id="r2")
        assert len(ghost.heard) == 2
        run = (await place.ask("GET", "/runs/r2")).json()
        assert run["run_id"] == "r2"


async def test_the_owner_that_has_another_token_is_unreachable_and_no_client_is_blamed(tmp_path):
    url = new_database()
    async with open_node_server(url, tmp_path, token="a-token-of-its-own") as first:
        path = project(tmp_path)
        body = {"path": str(path), "client_id": A}
        made = await first.ask("POST", "/v1/workspaces", body, token="a-token-of-its-own")
        async with open_node_server(url, tmp_path) as second:
            place = second.at(Place(first, made.json()["id"]))
            answer = await place.ask("POST", "/sessions", {"title": "t"})
            assert (answer.status, answer.json()["code"]) == (503, "owner_unreachable")
            assert (await place.ask("GET", "/sessions")).json() == []


async def test_a_node_that_cannot_renew_says_so_once_and_is_not_ready(tmp_path, caplog):
    url = urlsplit(new_database())
    with open_proxy(url.port) as proxy:
        behind = url._replace(netloc=f"{url.username}@127.0.0.1:{proxy.port}").geturl()
        async with open_node_server(behind, tmp_path) as node:
            assert (await node.ask("GET", "/v1/ready")).status == 200
            proxy.cut()
            while failures(await node.scrape(), node) < 3:  # noqa: ASYNC110 - only asking tells
                await trio.sleep(0.02)
            answer = await node.ask("GET", "/v1/ready")
            assert (answer.status, answer.json()["code"]) == (503, "not_ready")
            proxy.mend()
            while (await node.ask("GET", "/v1/ready")).status != 200:  # noqa: ASYNC110
                await trio.sleep(0.02)
    events = [record.getMessage() for record in caplog.records]
    assert events.count("node.not_renewed") == 1


def failures(metrics, node):
    return metrics.value("renewals_total", node=node.address, result="failed")


async def test_a_connection_to_a_node_notices_a_network_that_is_cut():
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, trio.aclose_forcefully, 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        origin = Origin("127.0.0.1", listener.socket.getsockname()[1], secure=False)
        async with await attentive(Dialer())(origin) as stream:
            assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            unacknowledged = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert unacknowledged == SILENT_SECONDS * 1000
        nursery.cancel_scope.cancel()
