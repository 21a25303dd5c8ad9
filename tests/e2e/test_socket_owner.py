"""The socket belongs to one user: a squatted one gets nothing, and another user gets in nowhere.

The other user is a real one, which takes root; without it these tests are skipped.
"""

import os
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

import anyio
import pytest
import trio

from crush_trio.cli.exits import NotOurs
from crush_trio.cli.server_link import open_link
from crush_trio.client import open_client
from crush_trio.client.http import ServerForeign, ServerUnreachable
from crush_trio.net.address import UnixAddress, default_address
from crush_trio.server.http.sockets import AddressInUse, CannotListen, open_listeners
from crush_trio.server.run import open_server
from tests.e2e.test_server_process import serving

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")

SQUAT = f"""
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
os.chown(sys.argv[1], {NOBODY}, {NOBODY})
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sock.listen()
print("ready", flush=True)
while True:
    peer, _ = sock.accept()
    print(len(peer.recv(65536)), flush=True)
    peer.close()
"""
"""Listens as another user; prints for each client how many bytes it has sent."""

MAIL = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
print("ready", flush=True)
while True:
    peer, _ = sock.accept()
    peer.sendall(b"220 mail ready\\r\\n")
    peer.close()
"""

ASK = """
import http.client, os, socket, sys
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect(sys.argv[1])
except PermissionError:
    print("no permission"); sys.exit()
sock.sendall(b"GET /v1/version HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
data = b""
while piece := sock.recv(65536):
    data += piece
print(data.split()[1].decode(), b"peer_forbidden" in data)
"""


@contextmanager
def listening(program, path):
    """Have another program listen at *path*."""
    program = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def asked_by_another_user(path, *privileges):
    """Return how a request of another user is answered."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *privileges]
    # The interpreter may be where another user cannot read.
    capable = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    done = subprocess.run(
        [*user, *(capable if not privileges else ()), sys.executable, "-c", ASK, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()


@asynccontextmanager
async def open_refused_client(environ):
    """Open a client of the default address, which must refuse it."""
    async with open_client(environ=environ) as client:
        with pytest.raises(ServerForeign) as caught:
            await client.version()
        yield str(caught.value)


def refused_under_asyncio(environ):
    async def refused():
        async with open_refused_client(environ) as said:
            return said

    return anyio.run(refused)  # its default is asyncio


# ── Squatters ───────────────────────────────────────────────────────────────────────────────────


@needs_root
@pytest.mark.item("G14")
async def test_a_squatted_default_socket_gets_nothing_and_the_user_is_told_whose_it_is(tmp_path):
    tmp_path.chmod(0o777)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    path = tmp_path / f"crush-{os.getuid()}.sock"
    with listening(SQUAT, path) as squatter, trio.fail_after(20):
        heard = partial(trio.to_thread.run_sync, squatter.stdout.readline)
        async with open_refused_client(environ) as said:
            assert f"process {squatter.pid} (python" in said
            assert f"user nobody ({NOBODY})" in said
            assert await heard() == "0\n"
        assert await trio.to_thread.run_sync(refused_under_asyncio, environ) == said
        assert await heard() == "0\n"
        for start in (True, False):  # a server of our own is no answer: the user has to know
            with pytest.raises(ServerForeign):
                async with open_link(None, environ, start=start):
                    pytest.fail("it was used")
            assert await heard() == "0\n"
        async with open_client(f"unix://{path}", environ=environ) as client:  # named: as ever
            with pytest.raises(Exception, match="broke"):
                await client.version()
            assert int(await heard()) > 0


@needs_root
@pytest.mark.item("G14")
async def test_a_squatted_socket_of_the_server_in_the_background_gets_nothing_either(tmp_path):
    tmp_path.chmod(0o777)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    path = tmp_path / f"crush-trio-{os.getuid()}.sock"
    with listening(SQUAT, path) as squatter, trio.fail_after(20):
        heard = partial(trio.to_thread.run_sync, squatter.stdout.readline)
        with pytest.raises(ServerForeign, match=f"process {squatter.pid}"):
            async with open_link(None, environ, start=True):
                pytest.fail("it was used")
        assert [await heard() for _ in range(3)] == ["0\n"] * 3


def spoil(folder, kind):
    """Make *folder* as it must not be."""
    if kind == "a link":
        folder.with_name("elsewhere").mkdir(mode=0o700)
        folder.symlink_to(folder.with_name("elsewhere"))
    else:
        folder.mkdir(mode=0o755 if kind == "open to others" else 0o700)
        if kind == "another user's":
            os.chown(folder, NOBODY, NOBODY)


@needs_root
@pytest.mark.parametrize("kind", ["another user's", "a link", "open to others"])
async def test_a_directory_that_another_user_could_have_made_is_not_used(tmp_path, kind):
    environ = {"TMPDIR": str(tmp_path)}
    address = default_address(environ, os.getuid())
    folder = Path(address.path.parent)
    assert folder.parent == tmp_path
    spoil(folder, kind)
    with pytest.raises(CannotListen, match=str(folder)):
        async with open_listeners([address]):
            pytest.fail("it listens")
    assert list(await trio.Path(folder).iterdir()) == []
    async with open_refused_client(environ) as said:
        assert str(folder) in said


@pytest.mark.item("G14")
async def test_without_a_runtime_directory_server_and_client_meet_in_a_private_one(tmp_path):
    environ = {"HOME": "", "TMPDIR": str(tmp_path)}
    address = default_address(environ, os.getuid())
    async with open_client(environ=environ) as client:
        with pytest.raises(ServerUnreachable, match="crush-trio serve"):
            await client.version()
        async with open_server(address) as bound:
            assert bound == (address,)
            assert address.path.parent == PurePosixPath(tmp_path, f"crush-trio-{os.getuid()}")
            made = await trio.Path(address.path.parent).stat()
            assert made.st_mode & 0o777 == 0o700
            assert (await client.version()).build_id.startswith("crush_trio-")


@pytest.mark.item("G14")
def test_serve_says_which_address_the_crush_client_needs(tmp_path):
    extra = {"XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": "", "HOME": "", "TMPDIR": str(tmp_path)}
    with serving(tmp_path, host=None, extra=extra) as server:
        line = server.process.stdout.readline()
        assert line.endswith(f"CRUSH_CLIENT_SERVER=1 crush --host {server.address}\n")
        assert server.ask("GET", "/health") == (200, None)


# ── Other users ─────────────────────────────────────────────────────────────────────────────────


@needs_root
@pytest.mark.needs("setpriv")
async def test_another_user_gets_in_only_if_the_owner_opened_the_socket(tmp_path, caplog):
    path = tmp_path / "s"
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    async with open_server(f"unix://{path}"):
        ask = partial(trio.to_thread.run_sync, asked_by_another_user, path)
        assert await ask() == "403 True"  # it may pass over file permissions
        assert [each.code for each in caplog.records if each.msg == "request.refused"] == [
            "peer_forbidden"
        ]
        path.chmod(0o666)
        assert await ask() == "200 False"


# ── Other programs ──────────────────────────────────────────────────────────────────────────────


async def test_a_socket_of_another_program_is_recognised_and_named(tmp_path):
    path = tmp_path / f"crush-{os.getuid()}.sock"
    with listening(MAIL, path) as other:
        named = rf"process {other.pid} \(python.*\), run by user"
        with pytest.raises(NotOurs, match=named):
            async with open_link(f"unix://{path}", {"HOME": str(tmp_path)}, start=False):
                pytest.fail("it was used")
        with pytest.raises(AddressInUse, match=named):
            async with open_listeners([UnixAddress(PurePosixPath(path))]):
                pytest.fail("it listens")
