"""A server behind nginx, each run by a user of its own: what the page about operations recommends.

It takes root to be two users; without it these tests are skipped.
"""

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from benchmarks.driver.process import free_port
from tests.e2e.test_server_process import CLIENT, LIMIT, Server, Stream, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("nginx", "setpriv"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users"),
]

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-enough-characters"
SERVER, PROXY = 64001, 64002
"""The user of the server and that of nginx; the group of the proxy has the same number."""


def as_user(uid, *command, groups="", reads_all=False):
    """Return *command* as *uid* runs it. *reads_all* is for an interpreter that only root can read."""
    extra = [f"--groups={groups}"] if groups else ["--clear-groups"]
    if reads_all:
        extra += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", *extra, "--", *command]


@pytest.fixture
def place(tmp_path):
    """A directory that both users can pass, with a home of the server and a directory of the socket."""
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    for name, uid in (("home", SERVER), ("project", SERVER), ("run", SERVER), ("nginx", PROXY)):
        (tmp_path / name).mkdir(mode=0o755)
        os.chown(tmp_path / name, uid, uid)
    return tmp_path


@contextmanager
def process(command, errors, **options):
    """Run a process for the length of the block, and end it with its children."""
    with errors.open("ab") as log:
        started = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            **options,
        )
        with started:
            try:
                yield started
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)


def of_the_unit(place):
    """Return the options of the unit of the repository, with the socket and the group of this test."""
    unit = (ROOT / "deploy" / "crush-trio.service").read_text("utf-8")
    [line] = re.findall(r"^ExecStart=\S+ serve (.*)$", unit, re.MULTILINE)
    line = line.replace("/run/crush-trio/crush.sock", f"{place}/run/s.sock")
    return line.replace("www-data", str(PROXY)).split()


@contextmanager
def serving(place, *arguments, extra=None):
    """Run the server as its user, with a socket for the group of the proxy."""
    command = [sys.executable, "-m", "crush_trio", "serve"]
    variables = {"HOME": str(place / "home"), "CRUSH_TRIO_TOKEN": TOKEN, **(extra or {})}
    own = environment(dict.fromkeys(("XDG_DATA_HOME", "XDG_STATE_HOME"), ""))
    with process(
        as_user(SERVER, *command, *arguments, groups=f"{PROXY}", reads_all=True),
        place / "server.txt",
        env={**own, **variables},
        cwd=place / "project",
    ) as server:
        ready, _, _ = select.select([server.stdout], [], [], LIMIT)
        line = server.stdout.readline() if ready else ""
        assert line, (place / "server.txt").read_text("utf-8")
        yield Server(server, line)


def config(place, port):
    """Return the example of the repository, for this port and these paths, without TLS."""
    text = (ROOT / "deploy" / "nginx.conf").read_text("utf-8")
    return whole_config(
        text.replace("/run/crush-trio/crush.sock", f"{place}/run/s.sock"), place, port
    )


def whole_config(text, place, port):
    """Return a configuration of nginx that has the server in *text*, on this port and without TLS."""
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    text = re.sub(r"^\s*ssl_\w+ .*;\n", "", text, flags=re.MULTILINE)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"{kind}_temp_path {place}/nginx/{kind};" for kind in kinds)
    return (
        f"daemon off; pid {place}/nginx/pid; error_log {place}/nginx/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}\n{text}\n}}\n"
    )


@contextmanager
def proxied(place):
    """Run nginx as its user; yield its port."""
    port = free_port()
    with nginx(place, config(place, port), port, partial(as_user, PROXY)):
        yield port


@contextmanager
def nginx(place, text, port, command_of=lambda *command: command):
    """Run nginx with the configuration *text*, until it accepts connections on *port*."""
    path = place / "nginx" / "nginx.conf"
    path.write_text(text, "utf-8")
    command = ["nginx", "-p", str(place / "nginx"), "-e", str(place / "nginx/early.log"), "-c"]
    with process(command_of(*command, str(path)), place / "nginx.txt") as started:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and started.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        else:
            raise AssertionError((place / "nginx.txt").read_text("utf-8"))
        yield


class Site:
    """The server as it is seen through nginx."""

    def __init__(self, port, token=TOKEN):
        self.port, self.headers = port, {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        data = None if body is None else json.dumps(body)
        connection.request(method, f"/v1{path}", data, self.headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, json.loads(content) if content[:1] in {b"{", b"["} else None

    def stream(self, workspace, last_id=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        target = f"/v1{workspace}/events?client_id={CLIENT}&form=native"
        place = {} if last_id is None else {"Last-Event-ID": last_id}
        connection.request("GET", target, headers={**self.headers, **place})
        return Stream(connection, connection.getresponse())

    def create(self, folder):
        status, made = self.ask(
            "POST", "/workspaces", {"path": str(folder), "client_id": CLIENT, "env": ["SECRET=x"]}
        )
        assert status == 200, made
        return made


def test_nginx_of_another_user_gets_in_by_its_group_and_streams_are_not_held_back(place):
    with serving(place, *of_the_unit(place)) as server, proxied(place) as port:
        site = Site(port)
        found = (place / "run" / "s.sock").stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (SERVER, PROXY, 0o660)
        assert Site(port, token=None).ask("GET", "/ready") == (200, None)
        assert Site(port, token=None).ask("GET", "/workspaces")[0] == 401
        made = site.create(place / "project")
        assert "env" not in made, "the socket is not the owner's alone"
        workspace = f"/workspaces/{made['id']}"
        stream = site.stream(workspace)
        assert stream.until("ready")
        _, session = site.ask("POST", f"{workspace}/sessions", {"title": "t"})
        prompt = {"session_id": session["id"], "prompt": "hello", "run_id": "r1"}
        assert site.ask("POST", f"{workspace}/agent", prompt)[0] == 202
        arrived = []
        for name, data in stream:
            arrived.append((time.monotonic(), name))
            if name == "run" and data["state"] == "completed":
                break
        deltas = [at for at, name in arrived if name == "message_delta"]
        assert len(deltas) > 3
        assert deltas[-1] - deltas[0] > 0.1, "they came one by one, as the demo writes them"
        server.process.send_signal(signal.SIGTERM)
        assert [name for name, _ in stream][-1] == "end"
        stream.close()
        assert server.process.wait(LIMIT) == 0
    log = (place / "server.txt").read_text("utf-8")
    assert "peer_forbidden" not in log


def test_with_the_default_socket_nginx_of_another_user_gets_nowhere(place):
    with serving(place, "--host", f"unix://{place}/run/s.sock"), proxied(place) as port:
        assert Site(port).ask("GET", "/health")[0] == 502


def test_draining_behind_a_proxy_a_run_finishes_and_probes_see_503(place):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.settimeout(LIMIT)
    notify.bind(str(place / "notify"))
    os.chown(place / "notify", SERVER, SERVER)
    extra = {"NOTIFY_SOCKET": str(place / "notify"), "WATCHDOG_USEC": "300000"}

    def told(wanted):
        while wanted not in (lines := notify.recv(4096).decode().splitlines()):
            pass
        return lines

    with notify, serving(place, *of_the_unit(place), extra=extra) as server, proxied(place) as port:
        assert told("READY=1")
        site = Site(port)
        workspace = f"/workspaces/{site.create(place / 'project')['id']}"
        stream = site.stream(workspace)
        _, session = site.ask("POST", f"{workspace}/sessions", {"title": "t"})
        prompt = {"session_id": session["id"], "prompt": "hello", "run_id": "r1"}
        assert site.ask("POST", f"{workspace}/agent", prompt)[0] == 202
        stream.until("message_delta")
        server.process.send_signal(signal.SIGTERM)
        assert told("STOPPING=1")
        status, refused = site.ask("GET", "/ready")
        assert (status, refused["code"]) == (503, "server_shutting_down")
        assert site.ask("GET", "/health")[0] == 200
        again = site.ask("POST", f"{workspace}/agent", {**prompt, "run_id": "r2"})
        assert (again[0], again[1]["code"]) == (503, "server_shutting_down")
        assert told("WATCHDOG=1")
        while (run := stream.until("run"))["state"] != "completed":
            pass
        assert [name for name, _ in stream][-1] == "end"
        stream.close()
        assert run["run_id"] == "r1"
        assert server.process.wait(LIMIT) == 0
