"""What the service manager is told, over a real datagram socket, and that it can do no harm."""

import logging
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.cli.commands.serve import obey_hangups, obey_signals, serve_until_signal
from crush_trio.net.address import UnixAddress
from crush_trio.server import ServerSettings
from crush_trio.server.run import Orders
from crush_trio.server.service_manager import MANAGER_VARIABLES, ServiceManager


@pytest.fixture
def told(tmp_path):
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


@pytest.fixture
def at_hangup():
    """Sets what SIGHUP does, whatever the program that runs the tests has set; undone at the end."""
    before = signal.getsignal(signal.SIGHUP)
    yield partial(signal.signal, signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)


def messages(sock):
    """Return what was sent since the last call, a list of lines for each message."""
    found = []
    while True:
        try:
            found.append(sock.recv(4096).decode().splitlines())
        except BlockingIOError:
            return found


def manager_at(sock, **variables):
    return ServiceManager.from_environment({"NOTIFY_SOCKET": sock.getsockname(), **variables})


def test_without_a_manager_nothing_happens():
    for environ in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}):
        manager = ServiceManager.from_environment(environ)
        manager.ready("x")
        manager.stopping(1)
        assert (manager.address, manager.limit) == ("", inf)


def test_it_is_told_of_the_start_the_reload_and_once_of_the_stop(told):
    manager = manager_at(told)
    manager.ready("Listening\nhere")
    manager.reloading()
    manager.ready("done")
    manager.stopping(10)
    manager.stopping(10)
    ready, reloading, again, stopping = messages(told)
    assert ready == ["READY=1", "STATUS=Listening here"]
    assert reloading[0] == "RELOADING=1"
    assert int(reloading[1].removeprefix("MONOTONIC_USEC=")) > 0
    assert again[0] == "READY=1"
    assert stopping[:2] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=25000000"]


def test_an_abstract_address_begins_with_a_null():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")  # the kernel chooses an abstract one
        sock.setblocking(False)
        name = sock.getsockname().decode()
        ServiceManager(f"@{name[1:]}").status("here")
        assert messages(sock) == [["STATUS=here"]]


def test_a_manager_that_is_gone_is_logged_once(tmp_path, caplog):
    manager = ServiceManager(str(tmp_path / "gone"))
    manager.ready("x")
    manager.status("y")
    assert [each.msg for each in caplog.records] == ["service_manager.not_told"]
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize(
    ("variables", "limit"),
    [
        ({}, inf),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, inf),
        ({"WATCHDOG_USEC": "0"}, inf),
        ({"WATCHDOG_USEC": "soon"}, inf),
    ],
)
def test_the_watchdog_is_that_of_this_process(told, variables, limit):
    assert manager_at(told, **variables).limit == limit


async def test_signs_of_life_come_three_times_as_often_as_they_must(told, autojump_clock):
    manager = manager_at(told, WATCHDOG_USEC="30000000")
    with trio.move_on_after(29):
        await manager.watch()
    assert messages(told) == [["WATCHDOG=1"]] * 3


async def test_without_a_watchdog_no_sign_is_sent(told, autojump_clock):
    with trio.move_on_after(1000):
        await manager_at(told).watch()
    assert messages(told) == []


def test_commands_of_the_agent_cannot_speak_for_the_service():
    environ = {**dict.fromkeys(MANAGER_VARIABLES, "/x"), "PATH": "/bin"}
    assert ServerSettings.from_environment(environ).environment == {"PATH": "/bin"}


# ── A server that is watched ────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_server_tells_of_its_start_its_reload_and_its_stop(told, tmp_path, monkeypatch):
    monkeypatch.setattr("crush_trio.cli.commands.serve.has_terminal", lambda: False)
    manager = manager_at(told, WATCHDOG_USEC="600000000")
    heard = trio.socket.from_stdlib_socket(told.dup())

    async def until(line):
        while True:
            lines = (await heard.recv(4096)).decode().splitlines()
            if lines[0] == line:
                return lines

    with trio.fail_after(30), heard:
        async with trio.open_nursery() as nursery:

            async def serve():
                where = [UnixAddress(tmp_path / "s.sock")]
                settings = ServerSettings(audit=None)
                await serve_until_signal(where, settings, 3.0, drain=5.0, manager=manager)

            nursery.start_soon(serve)
            assert await until("WATCHDOG=1")
            assert (await until("READY=1"))[1] == f"STATUS=Listening on unix://{tmp_path}/s.sock"
            os.kill(os.getpid(), signal.SIGHUP)
            await until("RELOADING=1")
            await until("READY=1")
            os.kill(os.getpid(), signal.SIGTERM)
            assert "EXTEND_TIMEOUT_USEC=23000000" in await until("STOPPING=1")


HANG = """
import os, sys, trio
from crush_trio.server.service_manager import ServiceManager

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ServiceManager.from_environment(os.environ).watch)
        await trio.to_thread.run_sync(sys.stdin.readline)
        print("hanging", flush=True)
        sys.stdin.readline()  # in the loop: nothing else runs until a line comes
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.slow
def test_a_loop_that_hangs_sends_no_sign_of_life_until_it_goes_on(told):
    environ = {**os.environ, "NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": "150000"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", HANG], env=environ, **pipes) as process:
        try:
            told.settimeout(30)
            assert told.recv(100) == b"WATCHDOG=1\n"
            process.stdin.write("hang\n")
            assert process.stdout.readline() == "hanging\n"
            told.setblocking(False)
            messages(told)
            told.settimeout(0.4)  # eight times as long as between two signs
            with pytest.raises(TimeoutError):
                told.recv(100)
            process.stdin.write("go on\n")
            told.settimeout(30)
            assert told.recv(100) == b"WATCHDOG=1\n"
        finally:
            process.kill()


# ── Signals ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_second_signal_ends_the_drain_and_the_next_one_is_for_the_handlers_before():
    orders, died = Orders(), []
    before = signal.signal(signal.SIGTERM, lambda *_: died.append(True))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(obey_signals, orders)
            told = []
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                await wait_all_tasks_blocked(0.01)
                told.append((orders.stop.is_set(), orders.hurry.is_set()))
            assert told == [(True, False), (True, True)]
            assert died == []
            orders.drained.set()  # as the server does when its drain is over
        os.kill(os.getpid(), signal.SIGTERM)
        assert died == [True]
    finally:
        signal.signal(signal.SIGTERM, before)


# ── SIGHUP ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("terminal", [True, False])
async def test_a_hangup_stops_a_server_with_a_terminal_and_reloads_one_without(terminal, at_hangup):
    at_hangup(signal.SIG_DFL)
    orders, reloaded = Orders(), []

    async def note_reload():
        await orders.wait_reload()
        reloaded.append(True)

    async with trio.open_nursery() as nursery:
        await nursery.start(obey_hangups, orders, terminal)
        nursery.start_soon(note_reload)
        await wait_all_tasks_blocked()
        for _ in range(2):  # a terminal that is closed may send it twice
            os.kill(os.getpid(), signal.SIGHUP)
            await wait_all_tasks_blocked(0.01)
        assert (orders.stop.is_set(), orders.hurry.is_set()) == (terminal, False)
        assert reloaded == ([] if terminal else [True])
        nursery.cancel_scope.cancel()


async def test_a_server_that_should_survive_its_terminal_ignores_the_hangup(at_hangup):
    at_hangup(signal.SIG_IGN)
    orders = Orders()
    await obey_hangups(orders, terminal=True)
    os.kill(os.getpid(), signal.SIGHUP)
    await trio.lowlevel.checkpoint()
    assert not orders.stop.is_set()
