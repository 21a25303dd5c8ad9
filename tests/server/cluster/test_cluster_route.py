"""`GET /v1/cluster` and the metrics of a node: any node tells about all, and a server alone about itself."""

import os
import re

import pytest

from crush_trio import __version__
from crush_trio.client import open_client
from crush_trio.testing.server.server import client_id, open_test_server
from tests.server.cluster.nodes import (
    SITE,
    TOKEN,
    TTL,
    open_node_server,
    open_two_nodes,
    project,
)
from tests.server.test_operations_page import rows
from tests.store.postgres.server import connect, new_database

pytestmark = pytest.mark.real_clock


async def test_every_node_lists_all_nodes_with_their_leases(tmp_path):
    async with open_two_nodes(new_database(), tmp_path) as (first, second):
        place = await first.create(project(tmp_path))
        told = [await node.cluster() for node in (first, second)]
        for node, view in zip((first, second), told, strict=True):
            assert (view["shared"], view["node"], view["others"]) == (True, node.address, [])
            found = {each["id"]: each for each in view["nodes"]}
            assert found.keys() == {first.address, second.address}
            for each in found.values():
                assert (each["address"], each["site"]) == (each["id"], SITE)
                assert (each["pid"], each["version"]) == (os.getpid(), __version__)
                assert (each["alive"], each["draining"]) == (True, False)
                assert 0 <= each["seen_seconds"] < TTL
            [lease] = found[first.address]["leases"]
            assert (lease["workspace_id"], lease["epoch"]) == (place.id, 1)
            assert lease["path"] == str(tmp_path / "project")
            assert 0 < lease["seconds"] <= TTL
            assert found[second.address]["leases"] == []
        assert {each["boot"] for each in told[0]["nodes"]} == {
            each["boot"] for each in told[1]["nodes"]
        }


async def test_a_node_that_has_left_is_listed_as_gone_and_its_lease_has_moved(tmp_path):
    url = new_database()
    async with open_node_server(url, tmp_path) as first:
        async with open_node_server(url, tmp_path) as second:
            place = await second.create(project(tmp_path))
        assert (await first.at(place).ask("GET", "/runs")).status == 200
        view = await first.cluster()
        found = {each["id"]: each for each in view["nodes"]}
        gone = found[second.address]
        assert (gone["alive"], gone["draining"], gone["leases"]) == (False, True, [])
        [lease] = found[first.address]["leases"]
        assert (lease["workspace_id"], lease["epoch"]) == (place.id, 2)
        metrics = await first.scrape()
        assert metrics.value("takeovers_total", node=first.address) == 1


async def test_the_size_of_a_database_is_counted_once_for_all_workspaces_in_it(tmp_path):
    url = new_database()
    async with open_node_server(url, tmp_path) as node:
        for name in ("a", "b", "c"):
            await node.create(project(tmp_path, name))
        metrics = await node.scrape()
        with connect(url) as database:
            [size] = database.execute("SELECT pg_database_size(current_database())").fetchone()
        assert metrics.value("store_bytes") == pytest.approx(size, rel=0.1)


async def test_a_lease_of_a_process_that_is_no_node_is_told_apart(tmp_path):
    url = new_database()
    async with open_node_server(url, tmp_path) as node:
        await node.create(project(tmp_path))
        with connect(url) as database:
            database.execute("UPDATE leases SET node_id = 'a-command'")
            view = await node.cluster()
        assert [each["leases"] for each in view["nodes"]] == [[]]
        [lease] = view["others"]
        assert f"process {os.getpid()}" in lease["holder"]


async def test_a_server_without_a_shared_store_is_the_only_one():
    async with open_test_server() as server:
        await server.create(client_id(1))
        view = (await server.request("GET", "/v1/cluster")).json()
        [node] = view["nodes"]
        assert (view["shared"], view["node"], view["others"]) == (False, node["id"], [])
        assert (node["pid"], node["version"]) == (os.getpid(), __version__)
        assert (node["address"], node["site"], node["leases"]) == ("", "", [])
        assert (node["alive"], node["draining"], node["seen_seconds"]) == (True, False, 0)
        server.backend.draining = True
        view = (await server.request("GET", "/v1/cluster")).json()
        assert view["nodes"][0]["draining"]


async def test_the_client_reads_the_cluster(tmp_path):
    async with open_node_server(new_database(), tmp_path) as node:
        async with open_client(node.address, token=TOKEN) as client:
            view = await client.cluster()
        assert [each.id for each in view.nodes] == [view.node] == [node.address]


async def test_the_metrics_of_a_node_say_what_it_holds_and_passes_on(tmp_path):
    async with open_two_nodes(new_database(), tmp_path) as (first, second):
        place = await first.create(project(tmp_path))
        session = await second.at(place).session()
        async with second.page(f"workspace={place.id}&client_id={client_id(2)}") as page:
            await page.until(lambda page: session in page.sessions)
            passing = await second.scrape()
        holding = await first.scrape()
        name = {"node": second.address}
        assert passing.value("forwarded_requests_total", result="answer", **name) == 1
        assert passing.value("forwarded_requests_total", result="stream", **name) == 1
        assert passing.value("forwarded_streams", **name) == 1
        assert passing.value("leases", **name) == 0
        assert passing.get("lease_seconds_min", **name) is None
        name = {"node": first.address}
        assert holding.value("leases", **name) == 1
        assert 0 < holding.value("lease_seconds_min", **name) <= TTL
        assert holding.value("renewals_total", result="done", **name) >= 1
        assert holding.value("renewals_total", result="failed", **name) == 0
        [info] = holding.families["crush_trio_node_info"].samples
        assert (info.labels["node"], info.labels["site"]) == (first.address, SITE)


async def test_a_lease_that_is_taken_counts_as_lost(tmp_path):
    url = new_database()
    async with open_node_server(url, tmp_path) as node:
        place = await node.create(project(tmp_path))
        async with node.page(f"workspace={place.id}&client_id={client_id(1)}") as page:
            with connect(url) as database:
                database.execute("UPDATE leases SET epoch = epoch + 1, node_id = 'other'")
            await page.rest()
        metrics = await node.scrape()
        assert metrics.value("leases_lost_total", node=node.address) == 1


async def test_there_is_a_row_for_every_series_of_a_node_and_no_other(tmp_path):
    async with open_node_server(new_database(), tmp_path) as node:
        await node.create(project(tmp_path))
        families = (await node.scrape()).families.values()
    alone = {name for name, *_ in rows("Series")}
    served = {family.name + "_total" * (family.type == "counter"): family for family in families}
    told = {name: (kind, labels) for name, kind, labels, *_ in rows("Series of a node")}
    assert told.keys() == served.keys() - alone
    for name, (kind, labels) in told.items():
        found = {label for sample in served[name].samples for label in sample.labels}
        named = set(re.findall(r"`(\w+)`", labels.partition(":")[0]))
        assert (kind, named) == (served[name].type, found), name
        assert "node" in found
