"""Binding with care: the file's mode, what may be replaced, what is cleared away at the end."""

import errno
import os
import socket
import stat
from contextlib import contextmanager
from pathlib import PurePosixPath

import pytest
import trio

from crush_trio.net.address import TcpAddress, UnixAddress
from crush_trio.server.http import sockets
from crush_trio.server.http.sockets import (
    AddressExposed,
    AddressInUse,
    CannotListen,
    SocketAccess,
    SocketExposed,
    open_listeners,
)

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

HERE = TcpAddress("127.0.0.1", 0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "crush.sock"


def at(path):
    return UnixAddress(PurePosixPath(path))


@contextmanager
def listening_at(path, backlog=1):
    """Listen at *path* as another program would."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(backlog)
        yield sock


def leave_stale_file(path):
    with listening_at(path):
        pass
    assert path.is_socket()


async def can_connect(address):
    family = socket.AF_UNIX if isinstance(address, UnixAddress) else socket.AF_INET
    with trio.socket.socket(family) as sock:
        target = str(address.path) if family == socket.AF_UNIX else (address.host, address.port)
        try:
            await sock.connect(target)
        except OSError:
            return False
        return True


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def is_there(path):
    return os.path.lexists(path)


# ── The socket file ─────────────────────────────────────────────────────────────────────────────


async def test_a_socket_file_opens_to_its_owner_alone_and_goes_with_the_server(path):
    before = os.umask(0)
    try:
        async with open_listeners([at(path)]) as listening:
            assert listening.addresses == (at(path),)
            assert mode_of(path) == 0o600
            assert await can_connect(at(path))
    finally:
        os.umask(before)
    assert not is_there(path)


async def test_no_client_gets_in_before_the_file_is_closed_to_others(path, monkeypatch):
    seen = []
    listen = socket.socket.listen

    def spy(sock, backlog):
        seen.append(mode_of(path))
        listen(sock, backlog)

    monkeypatch.setattr(socket.socket, "listen", spy)
    async with open_listeners([at(path)]):
        assert seen == [0o600]


@pytest.mark.item("G14")
async def test_a_file_left_by_a_dead_server_is_replaced(path):
    leave_stale_file(path)
    assert not await can_connect(at(path))
    async with open_listeners([at(path)]):
        assert await can_connect(at(path))


@pytest.mark.item("G14")
async def test_a_live_socket_is_never_removed(path):
    with listening_at(path):
        with pytest.raises(AddressInUse, match=str(path)):
            async with open_listeners([at(path)]):
                pass
        assert await can_connect(at(path))


@pytest.mark.item("G14")
async def test_a_server_too_busy_to_answer_is_not_taken_for_dead(path):
    with listening_at(path, backlog=0), socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            assert second.connect_ex(str(path)) == errno.EAGAIN
        with pytest.raises(AddressInUse):
            async with open_listeners([at(path)]):
                pass
        assert is_there(path)


class Silence(trio.abc.SocketFactory):
    """Sockets whose connections hang: no kernel we know lets a local one do that."""

    def socket(self, *_):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    async def connect(self, _):
        await trio.sleep_forever()


@pytest.mark.item("G14")
async def test_silence_is_not_taken_for_death(path, autojump_clock):
    leave_stale_file(path)
    trio.socket.set_custom_socket_factory(Silence())
    started = trio.current_time()
    with pytest.raises(AddressInUse):
        async with open_listeners([at(path)]):
            pass
    assert trio.current_time() == pytest.approx(started + 0.2)
    assert is_there(path)


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling link"])
async def test_what_is_not_a_socket_is_left_alone(path, kind):
    make = {
        "file": lambda: path.write_text("letters"),
        "directory": path.mkdir,
        "link": lambda: path.symlink_to(__file__),
        "dangling link": lambda: path.symlink_to("nowhere"),
    }
    make[kind]()
    with pytest.raises(CannotListen, match="is not a socket"):
        async with open_listeners([at(path)]):
            pass
    assert is_there(path)


async def test_two_servers_that_find_the_same_stale_file_do_not_both_win(path):
    leave_stale_file(path)
    results = []
    done = trio.Event()

    async def contend():
        try:
            async with open_listeners([at(path)]):
                results.append("won")
                await done.wait()
                assert await can_connect(at(path))
        except AddressInUse:
            results.append("lost")

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(contend)
        with trio.fail_after(2):
            while len(results) < 5:  # noqa: ASYNC110 - the losers wait for a file lock
                await trio.sleep(0.01)
        done.set()
    assert sorted(results) == ["lost"] * 4 + ["won"]


async def test_a_lock_that_is_never_given_up_does_not_keep_us_from_listening(path, monkeypatch):
    monkeypatch.setattr(sockets, "_TURN_LIMIT", 0.05)
    async with sockets._turn_in(path.parent):
        async with open_listeners([at(path)]):
            assert await can_connect(at(path))


async def test_a_deleted_socket_file_is_made_again_and_goes_with_the_server(path):
    async with open_listeners([at(path)]) as listening:
        path.unlink()
        async with await listening.restored(0):
            assert mode_of(path) == 0o600
            assert await can_connect(at(path))
            path.unlink()
            with listening_at(path), trio.move_on_after(0.02) as waited:
                await listening.restored(0)
            assert waited.cancelled_caught, "the file of another server is left to it"
            path.unlink()
            path.parent.rename(path.parent.with_name("moved"))
            with trio.move_on_after(0.02) as waited:
                await listening.restored(0)
            assert waited.cancelled_caught, "the directory may come back"
            path.parent.mkdir()
            async with await listening.restored(0):
                assert await can_connect(at(path))
    assert not is_there(path)


# ── Closing ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_file_of_a_successor_is_not_removed(path):
    async with open_listeners([at(path)]):
        path.unlink()
        leave_stale_file(path)
        theirs = path.stat().st_ino
    assert path.stat().st_ino == theirs


async def test_a_file_that_is_gone_already_is_not_missed(path):
    async with open_listeners([at(path)]):
        path.unlink()


async def test_closing_early_is_final_and_may_be_repeated(path):
    async with open_listeners([at(path), HERE]) as listening:
        listening.close()
        assert not is_there(path)
        assert not any([await can_connect(address) for address in listening.addresses])
        leave_stale_file(path)
        listening.close()
    assert is_there(path), "it was no longer ours"


async def test_the_socket_listens_until_its_file_is_gone(path):
    async with open_listeners([at(path)]) as listening:
        for listener in listening.listeners():
            await listener.aclose()
        assert await can_connect(at(path)), "a successor would take the file for stale"


# ── TCP ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_port_zero_becomes_a_port(host):
    async with open_listeners([TcpAddress(host, 0)]) as listening:
        [address] = listening.addresses
        assert address.host == "127.0.0.1"
        assert address.port > 0
        assert await can_connect(address)


async def test_a_port_that_is_taken_is_named():
    async with open_listeners([HERE]) as listening:
        with pytest.raises(AddressInUse, match=str(listening.addresses[0])):
            async with open_listeners(listening.addresses):
                pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_other_machines_get_in_only_where_a_token_is_required(host):
    address = TcpAddress(host, 0)
    with pytest.raises(AddressExposed, match="without a token"):
        async with open_listeners([address]):
            pass
    if host == "::" and not socket.has_dualstack_ipv6():
        return
    async with open_listeners([address], require_token=True) as listening:
        assert listening.addresses[0].port > 0


# ── What can go wrong ───────────────────────────────────────────────────────────────────────────


async def test_all_addresses_are_listened_on_or_none(path):
    with pytest.raises(AddressExposed):
        async with open_listeners([at(path), TcpAddress("0.0.0.0", 0)]):
            pass
    assert not is_there(path)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (at("/nowhere/at/all/crush.sock"), "No such file or directory"),
        (at("/tmp/" + "x" * 120), "too long"),
        (TcpAddress("no-such-host.invalid", 0), "no-such-host.invalid:0: "),
        (TcpAddress("192.0.2.1", 0), "192.0.2.1:0: "),
    ],
)
async def test_an_address_that_cannot_be_bound_is_named_with_the_reason(address, reason):
    with pytest.raises(CannotListen, match=reason) as caught:
        async with open_listeners([address], require_token=True):
            pass
    assert str(address) in str(caught.value)


# ── Who may open the socket ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [0o600, 0o660])
async def test_the_file_has_the_mode_and_the_group_that_were_asked_for(path, mode):
    group = os.getgid()
    async with open_listeners([at(path)], access=SocketAccess(mode, group)):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (mode, group)
        assert await can_connect(at(path))


async def test_a_socket_that_is_made_again_has_the_same_access(path):
    async with open_listeners([at(path)], access=SocketAccess(0o660)) as listening:
        path.unlink()
        with trio.fail_after(5):
            listener = await listening.restored(0.01)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        await listener.aclose()


async def test_a_socket_for_every_user_needs_a_token(path):
    access = SocketAccess(0o666)
    with pytest.raises(SocketExposed, match="without a token"):
        async with open_listeners([at(path)], access=access):
            pytest.fail("it listens")
    assert not path.exists()
    async with open_listeners([at(path)], access=access, require_token=True):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


async def test_a_group_that_the_user_is_not_in_is_refused(path, monkeypatch):
    def chown(*_given):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    with pytest.raises(CannotListen, match="Operation not permitted"):
        async with open_listeners([at(path)], access=SocketAccess(0o660, 12345)):
            pytest.fail("it listens")
    assert not path.exists()


def test_a_link_in_place_of_the_socket_is_not_followed(path, tmp_path):
    (tmp_path / "precious").touch(mode=0o600)
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(CannotListen, match="replaced"):
        SocketAccess(0o660).apply(path)
    assert stat.S_IMODE((tmp_path / "precious").stat().st_mode) == 0o600
