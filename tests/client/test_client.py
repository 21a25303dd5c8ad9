"""`open_client`: where it looks, who it says it is, and what it costs to import."""

import subprocess
import sys
import uuid

import pytest
import trio

from crush_trio.client import AnswerGarbled, AnswerLost, ServerUnreachable, open_client
from crush_trio.errors import ServerNotIdle, ServerStays
from crush_trio.net.address import BadAddress, TcpAddress
from crush_trio.net.errors import ConnectFailed, ConnectionLost, NotHttp, ResponseTooLarge
from crush_trio.testing.server.client import open_test_client
from crush_trio.testing.server.server import client_id, open_test_server
from tests.client.fake_transport import FakeTransport, answered

HEAVY = {"httpx", "urllib.request", "asyncio", "quart", "hypercorn", "sqlite3", "pytest"}


# ── Where and who ───────────────────────────────────────────────────────────────────────────────


async def test_an_address_is_text_or_a_value_or_the_socket_of_the_user(monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 1000)
    async with open_client("tcp://127.0.0.1:8765", environ={}) as client:
        assert client.address == TcpAddress("127.0.0.1", 8765)
    async with open_client(TcpAddress("::1", 80), environ={}) as client:
        assert str(client.address) == "tcp://[::1]:80"
    async with open_client(environ={"XDG_RUNTIME_DIR": "/run/user/1000"}) as client:
        assert str(client.address) == "unix:///run/user/1000/crush-1000.sock"
    with pytest.raises(BadAddress):
        async with open_client("127.0.0.1", environ={}):
            raise AssertionError("that is no address")


async def test_a_client_has_an_id_of_its_own_unless_it_is_given_one():
    async with open_client(environ={}) as one, open_client(environ={}) as other:
        assert one.id != other.id
        assert str(uuid.UUID(one.id)) == one.id
    async with open_client(environ={}, client_id=client_id(7)) as client:
        assert client.id == client_id(7)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("unix:///run/s", "http://api.crush.localhost/v1/health"),
        ("tcp://127.0.0.1:8765", "http://127.0.0.1:8765/v1/health"),
        ("tcp://[::1]:8765", "http://[::1]:8765/v1/health"),
    ],
)
async def test_a_server_is_asked_for_by_a_name_that_it_answers_to(address, url):
    seen = []

    def answer(request):
        seen.append(request)
        return answered()

    async with open_client(address, environ={}, transport=FakeTransport(answer)) as client:
        await client.health()
    [request] = seen
    assert f"http://{request.origin.name}{request.target}" == url
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"environ": {"CRUSH_TRIO_TOKEN": "from outside"}}, "Bearer from outside"),
        ({"environ": {"CRUSH_TRIO_TOKEN": "from outside"}, "token": "mine"}, "Bearer mine"),
        (
            {"environ": {"CRUSH_TRIO_TOKEN": "from outside"}, "token": "of a file\n"},
            "Bearer of a file",
        ),
        ({"environ": {"CRUSH_TRIO_TOKEN": ""}}, None),
    ],
)
async def test_the_token_is_the_callers_or_that_of_the_environment(options, shown):
    def answer(request):
        assert request.headers.get("authorization") == shown
        return answered()

    async with open_client("unix:///s", transport=FakeTransport(answer), **options) as client:
        await client.health()


# ── What can go wrong ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (ConnectFailed("no connection", reason="no such file"), ServerUnreachable, "nothing answers at unix:///s (no such file); start one with: crush-trio serve --host unix:///s"),
        (ConnectionLost("reset"), AnswerLost, "the connection to the server broke: reset"),
        (NotHttp(""), AnswerLost, "NotHttp"),
        (ResponseTooLarge("it has more than 7 bytes"), AnswerGarbled, "more than 7 bytes"),
    ],
)  # fmt: skip
async def test_what_the_network_does_is_told_in_our_words(raised, expected, text):
    def answer(_request):
        raise raised

    async with open_client("unix:///s", environ={}, transport=FakeTransport(answer)) as client:
        with pytest.raises(expected) as error:
            await client.health()
        assert text in str(error.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version":7}'])
async def test_an_answer_that_makes_no_sense_is_said_to_make_none(body):
    def answer(_request):
        return answered(body)

    async with open_client("unix:///s", environ={}, transport=FakeTransport(answer)) as client:
        with pytest.raises(AnswerGarbled, match="GET /v1/version"):
            await client.version()


async def test_a_server_ends_if_it_is_idle_and_says_so_if_it_is_not():
    async with open_test_server() as server, open_test_client(server) as client:
        async with client.open_workspace("/srv/project"):
            with pytest.raises(ServerNotIdle):
                await client.shutdown()
            with pytest.raises(ServerStays):
                await client.shutdown(if_idle=True)
        await trio.sleep(1)  # the workspace closes
        await client.shutdown()
        await server.backend.wait_shutdown()


# ── What it costs ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.heavy
def test_importing_the_client_loads_no_http_library_and_no_server():
    program = "import crush_trio.client, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "crush_trio.client.workspace" in loaded
    assert loaded & HEAVY == set()
    assert [
        name for name in loaded if name.startswith(("crush_trio.server", "crush_trio.testing"))
    ] == []
