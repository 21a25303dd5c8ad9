"""Two nodes of a cluster under Hypercorn: settings from the environment, and streams of the other node."""

import time
from contextlib import contextmanager

import pytest

from benchmarks.driver.process import free_port
from tests.e2e.test_deployment import TOKEN, Site
from tests.e2e.test_hypercorn import announced
from tests.e2e.test_server_process import CLIENT, LIMIT, Server, started
from tests.store.postgres.server import connect, new_database

pytestmark = pytest.mark.slow


@contextmanager
def node(folder, store, **extra):
    """Run the application as a node, with nothing but variables; yield its process and its clients' view."""
    folder.mkdir()
    port = free_port()
    variables = {
        "HOME": str(folder),
        "CRUSH_TRIO_TOKEN": TOKEN,
        "CRUSH_TRIO_STORE": store,
        "CRUSH_TRIO_ADVERTISE": f"tcp://127.0.0.1:{port}",
        "CRUSH_TRIO_SITE": "files",
        "CRUSH_TRIO_LEASE_TTL": "2",
        "CRUSH_SERVER_DETACH_GRACE": "0",
    }
    command = ["hypercorn", "-k", "trio", "-b", f"127.0.0.1:{port}", "crush_trio.asgi:app"]
    with started(command, folder, {**variables, **extra}) as process:
        yield Server(process, f"Listening on {announced(process, folder)}. "), Site(port)


def lease_of(store):
    with connect(store) as database:
        [row] = database.execute(
            "SELECT n.address, l.epoch, l.expires_at > clock_timestamp()"
            " FROM leases AS l LEFT JOIN nodes AS n ON n.boot = l.node_id"
        ).fetchall()
    return row


def until(wanted):
    deadline = time.monotonic() + LIMIT
    while not wanted() and time.monotonic() < deadline:
        time.sleep(0.02)
    return wanted()


def test_a_client_at_the_other_node_reads_a_run_and_its_claim_goes_when_it_hangs_up(tmp_path):
    store = new_database()
    project = tmp_path / "project"
    project.mkdir()
    with node(tmp_path / "a", store) as (first, owner), node(tmp_path / "b", store) as (second, it):
        body = {"path": str(project), "client_id": CLIENT}
        status, made = owner.ask("POST", "/workspaces", body)
        assert status == 200
        workspace = f"/workspaces/{made['id']}"
        stream = it.stream(workspace)
        assert stream.until("ready")
        _, session = it.ask("POST", f"{workspace}/sessions", {"title": "t"})
        prompt = {"session_id": session["id"], "prompt": "long 20", "run_id": "r1"}
        assert it.ask("POST", f"{workspace}/agent", prompt)[0] == 202
        while (run := stream.until("run"))["state"] != "completed":
            pass
        assert run["run_id"] == "r1"
        address, epoch, holds = lease_of(store)
        assert (address, epoch, holds) == (first.address, 1, True)
        stream.close()  # the client hangs up, at the node that has only passed its stream on
        assert until(lambda: not lease_of(store)[2]), (
            "the last claim went, and the workspace closed"
        )
        assert owner.ask("GET", "/workspaces") == (200, [])
        assert [each["run_id"] for each in it.ask("GET", f"{workspace}/runs")[1]] == ["r1"]
        assert first.stop()[0] == 0
        status, made = it.ask("POST", "/workspaces", body)
        assert (status, f"/workspaces/{made['id']}") == (200, workspace)
        assert lease_of(store) == (second.address, 2, True)
        assert second.stop()[0] == 0


@pytest.mark.long
def test_when_the_owner_stops_the_stream_at_the_other_node_goes_on_there(tmp_path):
    store = new_database()
    project = tmp_path / "project"
    project.mkdir()
    with node(tmp_path / "a", store) as (first, owner), node(tmp_path / "b", store) as (_, it):
        _, made = owner.ask("POST", "/workspaces", {"path": str(project), "client_id": CLIENT})
        workspace = f"/workspaces/{made['id']}"
        _, session = it.ask("POST", f"{workspace}/sessions", {"title": "t"})
        stream = it.stream(workspace)
        prompt = {"session_id": session["id"], "prompt": "long 2000", "run_id": "r1"}
        assert it.ask("POST", f"{workspace}/agent", prompt)[0] == 202
        stream.until("message_delta")
        assert first.stop()[0] == 0
        frames = list(stream)
        assert [name for name, _ in frames][-1] == "end"
        endings = [data["state"] for name, data in frames if name == "run"]
        stream = it.stream(workspace, stream.last_id)
        while not endings:
            name, data = next(iter(stream))
            endings += [run["state"] for run in data["ended"]] if name == "resync" else []
        assert endings == ["cancelled"]
        assert it.ask("POST", f"{workspace}/agent", {**prompt, "run_id": "r2"})[0] == 202
        assert stream.until("message_delta")
        stream.close()


def test_a_node_without_a_token_does_not_start_and_says_why(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    variables = {"CRUSH_TRIO_ADVERTISE": "tcp://127.0.0.1:1", "CRUSH_TRIO_STORE": new_database()}
    command = ["hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "crush_trio.asgi:app"]
    with started(command, folder, variables) as process:
        process.wait(LIMIT)
    said = (folder / "stderr.txt").read_text("utf-8")
    assert "a server with --advertise needs a token" in said
