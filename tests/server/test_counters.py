"""Which requests are counted, as what, and how long they took."""

import trio

from crush_trio.server.app import Door
from crush_trio.server.server import Meters
from crush_trio.server.settings import GuardSettings
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.asgi import AsgiDriver
from crush_trio.testing.server.server import client_id, open_test_server
from tests.server.scraping import Scrape, scrape

A = client_id(1)


async def test_requests_are_counted_by_the_template_of_their_route_and_their_status():
    async with open_test_server() as server:
        place = await server.create(A)
        for target, status in (("", 200), ("/sessions/nowhere", 404), ("/sessions/other", 404)):
            assert (await place.request("GET", target)).status == status
        seen = await scrape(server)
    route = "/v1/workspaces/{wid}"
    assert seen.value("http_requests_total", method="GET", route=route, status="200") == 1
    route += "/sessions/{sid}"
    assert seen.value("http_requests_total", method="GET", route=route, status="404") == 2
    assert seen.value("http_response_seconds_count", method="GET", route=route) == 2


async def test_whatever_strangers_ask_for_adds_one_row_and_not_many():
    guard = GuardSettings(token="a-token-of-enough-characters")
    async with open_test_server(guard=guard) as server:
        for path in ("/v1/version", "/etc/passwd", "/v1/workspaces/x"):
            assert (await server.request("GET", path)).status == 401
        header = ("authorization", "Bearer a-token-of-enough-characters")
        for method in ("BREW", "PROPFIND"):
            await server.driver.request(method, "/v1/nowhere", headers=[header])
        answer = await server.driver.request("GET", "/v1/metrics", headers=[header])
    seen = Scrape(answer.body.decode())
    assert seen.value("http_requests_total", method="GET", route="none", status="401") == 3
    assert seen.value("http_requests_total", method="other", route="none", status="404") == 2
    assert len(seen.families["crush_trio_http_requests"].samples) == 2


async def test_a_client_that_leaves_before_its_answer_is_counted_too():
    gate = Gate("slow")

    async def slow(_scope, _receive, _send):
        await gate.wait()

    meters = Meters()
    async with trio.open_nursery() as nursery:
        driver = AsgiDriver(Door(slow, meters, GuardSettings()), nursery)
        driver.open("GET", "/v1/health")
        await gate.reached()
        nursery.cancel_scope.cancel()
    assert meters.requests == {("GET", "none", "none"): 1}


async def test_a_request_is_timed_to_the_beginning_of_its_answer():
    async def slow(_scope, _receive, send):
        await trio.sleep(3)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await trio.sleep(3600)

    meters = Meters()
    async with trio.open_nursery() as nursery:
        exchange = AsgiDriver(Door(slow, meters, GuardSettings()), nursery).open(
            "GET", "/v1/health"
        )
        await exchange.head()
        assert meters.responses["GET", "none"].total == 3
        nursery.cancel_scope.cancel()
    assert meters.requests == {("GET", "none", "200"): 1}
