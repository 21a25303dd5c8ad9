"""HTTP/1.1 without I/O: the same responses however their bytes are cut."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.net.errors import ConnectionLost, NetworkError, NotHttp, UnsendableRequest
from crush_trio.net.http1 import HEAD_MOST, Http1

HOST = [("host", "h")]
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nX-Two: a\r\nx-two: b\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\ntrailer: x\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabc"
UNSIZED = b"HTTP/1.1 200 OK\r\n\r\nuntil the end"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def responded(pieces):
    """Return status, headers, body, and whether there can be another request."""
    http = Http1()
    http.request("GET", "/", HOST)
    incoming = iter([*pieces, b""])

    def more():
        http.feed(next(incoming))

    while (head := http.head()) is None:
        more()
    body = b""
    while True:
        piece = http.body()
        if piece is None:
            more()
        elif piece:
            body += piece
        else:
            return head.status, dict(head.headers), body, http.reusable


def cut(data, places):
    ends = sorted({place for place in places if 0 < place < len(data)} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


EXPECTED = [
    (CHUNKED, (200, {"transfer-encoding": "chunked", "x-two": "a, b"}, b"hello!", True)),
    (SIZED, (404, {"content-length": "3"}, b"abc", True)),
    (UNSIZED, (200, {}, b"until the end", False)),
    (EMPTY, (204, {}, b"", True)),
]
RESPONSES = pytest.mark.parametrize(("data", "expected"), EXPECTED)


@RESPONSES
def test_a_response_is_the_same_cut_at_any_byte(data, expected):
    assert responded([data]) == expected
    assert responded(cut(data, range(len(data)))) == expected
    for place in range(1, len(data)):
        assert responded(cut(data, [place])) == expected


@given(st.sampled_from(EXPECTED), st.lists(st.integers(1, 200)))
def test_a_response_is_the_same_however_it_is_cut(case, places):
    data, expected = case
    assert responded(cut(data, places)) == expected


@pytest.mark.parametrize("data", [CHUNKED, SIZED])
def test_a_response_that_ends_anywhere_before_its_end_is_a_lost_connection(data):
    for end in range(len(data)):
        for pieces in ([data[:end]], cut(data[:end], range(end))):
            with pytest.raises(ConnectionLost):
                responded([piece for piece in pieces if piece])


@given(st.binary(min_size=1, max_size=200), st.lists(st.integers(1, 200)))
def test_nonsense_is_an_error_of_the_network_or_a_response_and_nothing_else(data, places):
    with suppress(NetworkError):
        responded(cut(data, places))


def test_two_requests_follow_each_other_on_one_connection():
    http = Http1()
    for _ in range(2):
        http.request("GET", "/", HOST)
        assert not http.heard
        http.feed(SIZED)
        assert (http.head().status, http.body(), http.body()) == (404, b"abc", b"")
        assert http.heard
        http.next_cycle()


@pytest.mark.parametrize(
    "data",
    [SIZED + b"x", SIZED.replace(b"HTTP/1.1", b"HTTP/1.0"), SIZED.replace(b"c", b"connection: close\r\nc", 1)],
)  # fmt: skip
def test_a_connection_is_not_used_again_if_more_follows_or_it_is_to_close(data):
    assert responded([data]) == (404, responded([data])[1], b"abc", False)


def test_a_head_without_an_end_is_not_kept_for_ever():
    with pytest.raises(NotHttp):
        responded([b"HTTP/1.1 200 OK\r\nx: ", *[b"x" * 1000] * (HEAD_MOST // 1000 + 1)])


def test_an_error_in_a_body_comes_after_what_came_before_it_and_stays():
    http = Http1()
    http.request("GET", "/", HOST)
    http.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nnonsense\r\n")
    assert http.head().status == 200
    assert http.body() == b"ok"
    for _ in range(2):
        with pytest.raises(NotHttp):
            http.body()


@pytest.mark.parametrize(
    ("target", "header"),
    [("/ä", "x"), ("/a b", "x"), ("/", "secret\nx"), ("/", "secret\u20ac"), ("/", "secret\0")],
)
def test_what_cannot_be_sent_is_refused_and_not_repeated(target, header):
    with pytest.raises(UnsendableRequest) as refused:
        Http1().request("GET", target, [*HOST, ("x", header)])
    assert refused.value.__cause__ is None
    assert "secret" not in str(refused.value)


def test_a_body_may_be_sent_in_pieces():
    http = Http1()
    sent = http.begin("PUT", "/", [*HOST, ("transfer-encoding", "chunked")])
    sent += http.data(b"ab") + http.data(b"") + http.data(b"c") + http.end()
    assert sent.endswith(b"\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
