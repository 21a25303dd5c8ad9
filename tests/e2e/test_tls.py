"""The server behind TLS, as another machine would use it: certificates, tokens and the audit.

A certificate authority of our own is made with openssl; Hypercorn serves the application with TLS. One
server process serves all cases.
"""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import anyio
import pytest
import trio

from crush_trio.client import ApiError, ServerUnreachable, open_client
from crush_trio.server.tokens import Right, TokenFile, tokens_path
from tests.e2e.test_server_process import LIMIT, environment, started
from tests.net.servers import make_certificate

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.needs("openssl")]


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Return the certificate of an authority, and the key and the certificate that it gave to a server."""
    place = tmp_path_factory.mktemp("authority")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    ca_key, ca, key, request, cert = (
        place / name for name in ("ca.key", "ca.pem", "server.key", "server.csr", "server.pem")
    )
    openssl(
        *("req", "-x509", *curve, "-days", "2", "-subj", "/CN=our authority"),
        *("-keyout", ca_key, "-out", ca),
    )
    openssl("req", *curve, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    (place / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(
        *("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial"),
        *("-days", "2", "-extfile", place / "names", "-out", cert),
    )
    return ca, key, cert


@contextmanager
def secure_server(folder, authority, extra):
    """Serve with TLS and give the address."""
    _, key, cert = authority
    command = ["hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "--certfile", str(cert)]
    command += ["--keyfile", str(key), "crush_trio.asgi:app"]
    with started(command, folder, extra) as process:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and process.poll() is None:
            text = (folder / "stderr.txt").read_text("utf-8")
            if "Running on https://" in text:
                port = text.partition("Running on https://")[2].split()[0].rpartition(":")[2]
                yield f"https://localhost:{port}"
                return
            time.sleep(0.02)
        raise AssertionError((folder / "stderr.txt").read_text("utf-8"))


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


def command(*words, extra):
    """Run the command line; return its exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "crush_trio", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment(extra),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


async def works(address, token, ca, environ, work):
    """Have a prompt answered; return the client and the records of the audit."""
    async with open_client(address, token=token, ca=ca, environ=environ) as client:
        async with client.open_workspace(work) as workspace:
            session = await workspace.sessions.create("far")
            handle = await workspace.submit("hello", session=session.id)
            assert (await handle.wait()).state == "completed"
            return client, await client.audit()


async def refused(address, **options):
    """Ask for the audit; return why that is refused."""
    async with open_client(address, **options) as client:
        with pytest.raises((ApiError, ServerUnreachable)) as error:
            await client.audit()
    return str(error.value) if isinstance(error.value, ServerUnreachable) else error.value.code


async def test_a_client_far_away_works_over_tls_with_its_token_and_leaves_its_name(
    tmp_path, authority, home
):
    ca, file = authority[0], TokenFile(tokens_path(home))
    made = command("token", "add", "laptop", "--rights", "admin", "--expires", "1h", extra=home)
    token, watch, work = made[1].strip(), file.add("phone", Right.WATCH), tmp_path / "work"
    work.mkdir()
    _, foreign = make_certificate(tmp_path)
    with secure_server(tmp_path, authority, home) as address, trio.fail_after(LIMIT):
        client, records = await works(address, token, ca, home, work)
        sent = next(each for each in records if each.action == "sent")
        assert (sent.token, sent.client_id) == ("laptop", client.id)
        assert sent.address.startswith("127.0.0.1:")

        under_asyncio = partial(anyio.run, works, address, token, ca, home, work)
        _, records = await trio.to_thread.run_sync(under_asyncio)
        assert [each.token for each in records if each.action == "sent"] == ["laptop"] * 2
        distrusted = partial(anyio.run, partial(refused, address, token=token, environ=home))
        assert "its certificate is not trusted" in await trio.to_thread.run_sync(distrusted)

        unknown = "its certificate is not trusted"
        assert unknown in await refused(address, token=token, environ=home)
        assert unknown in await refused(address, token=token, environ=home, ca=foreign)
        missing = await refused(address, token=token, environ=home, ca=tmp_path / "none")
        assert "none cannot be read" in missing

        named = {**home, "SSL_CERT_FILE": str(ca)}
        assert await refused(address, token=watch, environ=named) == "right_missing"
        file.revoke("phone")
        assert await refused(address, token=watch, environ=named) == "unauthorized"
        assert await refused(address, environ=named) == "unauthorized"

        words = ["audit", "--host", address, "--ca", str(ca), "--json"]
        code, out, err = command(*words, extra={**home, "CRUSH_TRIO_TOKEN": token})
        assert code == 0, err
        actions = [json.loads(line)["action"] for line in out.splitlines()]
        assert actions[0] == "token_added"
        assert {"workspace_created", "sent", "refused"} <= set(actions)
        code, _, err = command(*words[:3], extra={**home, "CRUSH_TRIO_TOKEN": token})
        assert code == 3
        assert "--ca names the file" in err
