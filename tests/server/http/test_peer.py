"""The peer of a connection: found in the kernel's tables, asked for once, free while there are no commands."""

import os
import socket
import struct
from contextlib import contextmanager

import pytest
import trio

from crush_trio.server.http import peer as module
from crush_trio.server.http.peer import Peer, peer_of
from crush_trio.tools.shell.guard.descendants import Family

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.mark.parametrize(
    ("listening", "connecting"),
    [
        ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.0.0.1")),
        ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")),
        ((socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.1")),
        ((socket.AF_INET6, "::1"), (socket.AF_INET6, "::1")),
    ],
    ids=["4", "4 by 6", "6 by 4", "6"],
)
def test_the_socket_at_the_other_end_is_found(listening, connecting):
    both = listening[1] == "::"
    place = listening[1], 0
    with socket.create_server(place, family=listening[0], dualstack_ipv6=both) as server:
        with socket.socket(connecting[0]) as client:
            client.connect((connecting[1], server.getsockname()[1]))
            ours, _ = server.accept()
            with ours:
                near, far = module._ends(ours)
                # Another test may have a connection from the same port to somewhere else.
                [row] = [each for each in module._rows(near, far) if each.exact]
                assert row == module._Row(os.fstat(client.fileno()).st_ino, exact=True)
                alone = Family(os.getpid(), frozenset(), escaped=False)
                assert not module._is_tcp_of(alone, near, far)
                client.close()
                assert module._is_tcp_of(alone, near, far), "it has left, so it may have been one"


def test_a_peer_on_another_machine_is_no_process_of_ours():
    near, far = module._end(("10.0.0.1", 80)), module._end(("192.0.2.7", 4711))
    assert not module._is_tcp_of(Family(os.getpid(), frozenset(), escaped=False), near, far)
    assert module._is_tcp_of(Family(os.getpid(), frozenset(), escaped=False), near, None)


async def test_a_peer_that_resets_its_connection_while_it_is_looked_for_may_be_a_command(
    monkeypatch,
):
    """Then the tables may have another connection of the same address, of a process that is no command."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as other:
        client = socket.create_connection(server.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted, _ = server.accept()

        def rows(near, far):
            client.close()
            yield module._Row(os.fstat(other.fileno()).st_ino, exact=False)

        monkeypatch.setattr(module, "_rows", rows)
        with trio.socket.from_stdlib_socket(accepted) as ours:
            peer = Peer(ours)
            peer._suspect = True
            assert await peer.is_own_process()


async def test_a_peer_of_this_process_is_known_and_no_command():
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        peer = Peer(ours)
        assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
        assert not peer.is_foreign()
        assert not peer.is_owner(), "there is no socket file to tell who else could connect"
        peer._suspect = True
        assert not await peer.is_own_process()
        assert not peer.suspect


@pytest.mark.parametrize("state", [{}, {"crush_trio.carrier": object()}])
def test_of_a_request_under_another_server_nothing_is_known(state):
    assert peer_of({"state": state}) is None


@contextmanager
def accepted_by_a_group(path):
    """Yield our end of a connection through a socket file that a group may open."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        path.chmod(0o660)
        client.connect(str(path))
        accepted, _ = server.accept()
        with trio.socket.from_stdlib_socket(accepted) as ours:
            yield ours


def test_who_was_let_in_stays_in_when_a_server_that_stops_has_removed_its_file(
    tmp_path, monkeypatch
):
    """The proxy of another user was refused with 403 from then on."""
    path = tmp_path / "s"
    monkeypatch.setattr(module.os, "getuid", lambda: 4242)
    monkeypatch.setattr(module, "ROOT", 4242)
    with accepted_by_a_group(path) as ours:
        peer = Peer(ours)
        assert not peer.is_foreign()
        path.unlink()
        assert not peer.is_foreign()
        assert Peer(ours).is_foreign(), "of a file that is gone nothing is known"
        assert not peer.is_owner()
