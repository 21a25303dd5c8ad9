"""Two nodes on one PostgreSQL behind nginx, as the page about operations describes it: a rolling restart."""

import os
import re
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest
from attrs import define, field

from benchmarks.driver.process import free_port
from tests.e2e.test_deployment import ROOT, TOKEN, Site, nginx, whole_config
from tests.e2e.test_server_process import CLIENT, LIMIT, serving
from tests.store.postgres.server import connect, new_database

pytestmark = [pytest.mark.slow, pytest.mark.needs("nginx")]

PAUSE = 0.05
TERMINAL = {"completed", "cancelled", "errored", "folded", "interrupted"}


@define(eq=False)
class Nodes:
    """Two servers at addresses of their own, each of which can be stopped and started again."""

    folder: Path
    store: str
    ports: tuple[int, ...] = field(factory=lambda: (free_port(), free_port()))
    _running: dict = field(factory=dict, init=False)

    def start(self, number):
        place = self.folder / f"node-{number}"
        place.mkdir(exist_ok=True)
        own = f"tcp://127.0.0.1:{self.ports[number]}"
        options = ["--advertise", own, "--site", "files", "--lease-ttl", "2", "--drain", "10"]
        extra = {"CRUSH_TRIO_TOKEN": TOKEN, "CRUSH_TRIO_STORE": self.store, "HOME": str(place)}
        extra["CRUSH_TRIO_PUBLIC_URL"] = "http://127.0.0.1"
        stack = ExitStack()
        server = stack.enter_context(serving(place, *options, host=own, extra=extra))
        self._running[number] = (stack, server)

    def stop(self, number):
        """Stop a node as systemd does; return its exit code."""
        stack, server = self._running.pop(number)
        with stack:
            return server.stop()[0]

    def restart(self, number):
        """Stop a node and start it again; return the exit code."""
        code = self.stop(number)
        self.start(number)
        return code

    def stop_all(self):
        for stack, _ in self._running.values():
            stack.close()

    def log(self, number):
        return (self.folder / f"node-{number}" / "stderr.txt").read_text("utf-8")


@define(eq=False)
class Reader:
    """A client that follows a workspace through nginx, and comes back with its last event whenever it is cut off."""

    site: Site
    workspace: str
    endings: Counter = field(factory=Counter, init=False)
    states: set = field(factory=set, init=False)
    streams: int = field(default=0, init=False)
    left: threading.Event = field(factory=threading.Event, init=False)

    def follow(self):
        last = None
        while not self.left.is_set():
            try:
                stream = self.site.stream(self.workspace, last)
                if stream.response.status == 200:
                    self.streams += 1
                    for name, data in stream:
                        self.take(name, data)
                        last = stream.last_id
                        if self.left.is_set():
                            break
                stream.close()
            except (OSError, HTTPException):
                pass  # cut off in the middle
            time.sleep(PAUSE)

    def take(self, name, data):
        """Count what ends runs: an event of each, or what a resync says has ended meanwhile."""
        runs = data["ended"] if name == "resync" else [data] if name == "run" else []
        for run in runs:
            if run["state"] in TERMINAL:
                self.endings[run["run_id"]] += 1
                self.states.add(run["state"])


@contextmanager
def followed(site, workspace):
    """Have a reader follow the workspace during the block."""
    reader = Reader(site, workspace)
    thread = threading.Thread(target=reader.follow)
    thread.start()
    try:
        yield reader
    finally:
        reader.left.set()
        site.ask(
            "POST", f"{workspace}/sessions", {"title": "an event, so that the reader looks up"}
        )
        thread.join(LIMIT)


def insist(site, path, body):
    """Send a POST until it is accepted; what may be sent again is known by its run id."""
    deadline, refused = time.monotonic() + LIMIT, []
    while time.monotonic() < deadline:
        status, answer = site.ask("POST", path, body)
        if status == 202:
            return refused
        assert status in {404, 409, 502, 503}, answer
        refused.append(status if answer is None else answer["code"])
        if status == 404:  # closed, or on its way to the other node
            site.create_again()
        time.sleep(PAUSE)
    raise AssertionError(refused)


class Client(Site):
    """A client of one directory, which it opens again if it has to."""

    def __init__(self, port, folder):
        super().__init__(port)
        self.folder = folder
        self.id = self.create_again()

    def create_again(self):
        return self.open(self.folder)

    def open(self, folder):
        body = {"path": str(folder), "client_id": CLIENT}
        status, made = self.ask("POST", "/workspaces", body)
        assert status == 200, made
        return made["id"]


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path, new_database())
    for number in range(2):
        made.start(number)
    yield made
    made.stop_all()


@contextmanager
def behind_nginx(place, nodes):
    """Run nginx with the file of the repository in front of the nodes; yield its port."""
    text = (ROOT / "deploy" / "nginx-cluster.conf").read_text("utf-8")
    addresses = sorted({*re.findall(r"server (10\S+:8765)", text)})
    for port, address in zip(nodes.ports, addresses, strict=True):
        text = text.replace(address, f"127.0.0.1:{port}")
    (place / "nginx").mkdir()
    port = free_port()
    user = "user root;\n" if os.getuid() == 0 else ""
    with nginx(place, user + whole_config(text, place, port), port):
        yield port


def test_while_nodes_are_restarted_in_turn_every_accepted_prompt_ends_once(tmp_path, nodes):
    project = tmp_path / "project"
    project.mkdir()
    with behind_nginx(tmp_path, nodes) as port:
        site = Client(port, project)
        workspace = f"/workspaces/{site.id}"
        _, session = site.ask("POST", f"{workspace}/sessions", {"title": "t"})
        sent, over, codes, refused = [], threading.Event(), [], Counter()

        def restart_all():
            codes.extend(nodes.restart(number) for number in range(2))
            over.set()

        with followed(site, workspace) as reader:
            restarts = threading.Thread(target=restart_all)
            restarts.start()
            while not over.is_set() or len(sent) < 10:
                run_id = f"r{len(sent)}"
                prompt = {"session_id": session["id"], "prompt": "long 3", "run_id": run_id}
                refused.update(insist(site, f"{workspace}/agent", prompt))
                sent.append(run_id)
                new = tmp_path / run_id
                new.mkdir()
                site.open(new)
                time.sleep(3 * PAUSE)
            restarts.join(LIMIT)
            deadline = time.monotonic() + LIMIT
            while set(sent) - reader.endings.keys() and time.monotonic() < deadline:
                time.sleep(PAUSE)
        assert codes == [0, 0]
        assert reader.endings == dict.fromkeys(sent, 1)
        assert reader.states == {"completed"}, "the drain lets them finish"
        assert reader.streams > 1
        assert refused.keys() <= {"server_shutting_down"}, "there is always a node that answers"
        found = [run["run_id"] for run in site.ask("GET", f"{workspace}/runs?limit=1000")[1]]
        assert sorted(found) == sorted(sent)
        assert site.create_again() == site.id
    with connect(nodes.store) as database:
        rows = database.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall()
        [(epoch,)] = database.execute("SELECT max(epoch) FROM leases").fetchall()
    assert rows == [("completed", len(sent))]
    assert epoch >= 2
    assert "request.crashed" not in nodes.log(0) + nodes.log(1)


def test_a_browser_stays_at_one_node_and_gets_to_the_other_one_when_that_is_gone(tmp_path, nodes):
    """A login is in the memory of one node; here every request without one is refused, and logged there."""
    with behind_nginx(tmp_path, nodes) as port:
        browser = Site(port, token=None)
        for _ in range(8):
            assert browser.ask("GET", "/workspaces")[0] == 401
        refused = [nodes.log(number).count("request.refused") for number in range(2)]
        assert sorted(refused) == [0, 8]
        mine = refused.index(8)
        assert nodes.stop(mine) == 0
        assert browser.ask("GET", "/workspaces")[0] == 401
        assert nodes.log(1 - mine).count("request.refused") == 1
