"""How an address is written, read, and chosen by default."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.net.address import (
    PATH_LIMIT,
    BadAddress,
    TcpAddress,
    UnixAddress,
    default_address,
    is_loopback,
    parse_address,
)


def unix(path):
    return UnixAddress(PurePosixPath(path))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:///run/crush.sock", unix("/run/crush.sock")),
        ("unix:///a b/ü%20.sock", unix("/a b/ü%20.sock")),
        ("tcp://127.0.0.1:8765", TcpAddress("127.0.0.1", 8765)),
        ("tcp://localhost:0", TcpAddress("localhost", 0)),
        ("tcp://[::1]:80", TcpAddress("::1", 80)),
        ("tcp://host:80/v1/ignored?as=well", TcpAddress("host", 80)),
    ],
)
@pytest.mark.item("G14")
def test_an_address_is_read(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "no scheme"),
        ("/run/crush.sock", "no scheme; write unix:///run/crush.sock"),
        ("localhost:8765", "no scheme; write tcp://localhost:8765"),
        ("http://localhost:8765", "http:// is not a scheme we listen on"),
        ("npipe:////./pipe/crush", "npipe:// is not a scheme we listen on"),
        ("unix://crush.sock", "must be absolute: write unix:///crush.sock"),
        ("unix://", "must be absolute: write unix:///path/to/crush.sock"),
        ("unix:///run/", "that is a directory"),
        ("unix:///run/\0.sock", "NUL"),
        ("tcp://", "the host is missing: write tcp://127.0.0.1:8765"),
        ("tcp://:8765", "the host is missing"),
        ("tcp://localhost", "the port is missing: write tcp://localhost:8765"),
        ("tcp://localhost:", "the port is missing: write tcp://localhost:8765"),
        ("tcp://[::1]", r"the port is missing: write tcp://\[::1\]:8765"),
        ("tcp://localhost:http", "write tcp://host:port"),
        ("tcp://localhost:65536", "Port out of range 0-65535; write tcp://host:port"),
        ("tcp://localhost:-1", "write tcp://host:port"),
        ("tcp://[::1:80", "write tcp://host:port"),
        ("tcp://user:secret@localhost:80", "credentials do not belong in an address"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_with_advice(text, advice):
    with pytest.raises(BadAddress, match=advice) as caught:
        parse_address(text)
    assert caught.value.code == "bad_address"


@pytest.mark.parametrize("scheme", ["tcp", "http"])
@pytest.mark.parametrize("password", ["secret", "se@cret", "se/cret"])
def test_a_refusal_does_not_repeat_a_password(scheme, password):
    with pytest.raises(BadAddress) as caught:
        parse_address(f"{scheme}://user:{password}@localhost:port")
    assert "cret" not in str(caught.value)


@given(st.text(max_size=40) | st.from_regex(r"(unix|tcp)://.{0,30}", fullmatch=True))
def test_any_text_is_either_an_address_or_refused(text):
    try:
        address = parse_address(text)
    except BadAddress:
        return
    assert parse_address(str(address)) == address


HOSTS = st.sampled_from(["127.0.0.1", "::1", "localhost", "example.org", "0.0.0.0", "fe80::1"])


@given(st.builds(TcpAddress, HOSTS, st.integers(0, 65535)))
def test_an_address_can_be_read_as_it_is_written(address):
    assert parse_address(str(address)) == address


# ── The default ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/run/user/7/crush-7.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/t"}, 7, "/run/user/7/crush-7.sock"),
        ({"XDG_RUNTIME_DIR": "/not-utf-8-\udce9"}, 7, "/not-utf-8-\udce9/crush-7.sock"),
        ({"HOME": "/h"}, 7, "/h/.local/state/crush-trio/run/crush-7.sock"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s"}, 7, "/s/crush-trio/run/crush-7.sock"),
        ({"HOME": "/h", "XDG_STATE_HOME": "s"}, 7, "/h/.local/state/crush-trio/run/crush-7.sock"),
        ({"TMPDIR": "/t"}, 7, "/t/crush-trio-7/crush-7.sock"),
        ({"XDG_RUNTIME_DIR": "", "TMPDIR": "/t"}, 7, "/t/crush-trio-7/crush-7.sock"),
        ({"XDG_RUNTIME_DIR": "no", "TMPDIR": "/t"}, 7, "/t/crush-trio-7/crush-7.sock"),
        ({"TMPDIR": "not/absolute"}, 7, "/tmp/crush-trio-7/crush-7.sock"),
        ({"TMPDIR": "", "HOME": ""}, 7, "/tmp/crush-trio-7/crush-7.sock"),
        ({}, 0, "/tmp/crush-trio-0/crush-0.sock"),
        ({}, None, "/tmp/crush-trio/crush.sock"),
    ],
)
@pytest.mark.item("G14")
def test_the_default_is_the_users_own_socket(environ, uid, path):
    found = default_address(environ, uid)
    assert found == unix(path)
    assert found.owner == uid
    runtime = environ.get("XDG_RUNTIME_DIR", "").startswith("/")
    assert found.private == (uid is not None and not runtime)


@pytest.mark.item("G14")
def test_a_default_too_long_to_bind_gives_way_to_the_next_directory():
    name = "/crush-7.sock"
    fits = "/" + "ü" * ((PATH_LIMIT - 1 - len(name)) // 2)
    assert len((fits + name).encode()) == PATH_LIMIT
    assert default_address({"XDG_RUNTIME_DIR": fits}, 7) == unix(fits + name)
    own = "/tmp/crush-trio-7" + name
    assert default_address({"XDG_RUNTIME_DIR": fits + "x", "HOME": fits}, 7) == unix(own)


# ── Who can reach it ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("unix:///run/crush.sock", True),
        ("tcp://localhost:1", True),
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.9.9.9:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", False),
        ("tcp://192.168.0.1:1", False),
        ("tcp://localhost.example.org:1", False),
        ("tcp://127.0.0.1.example.org:1", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(text, local):
    assert is_loopback(parse_address(text)) is local
