"""However the bytes of a client's requests arrive, they are the same requests.

A connection is served at one end of a pair of sockets; at the other end a client says all it has to
say, in pieces that are cut anywhere, and each piece is heard before the next is sent. The answers
are those that the requests deserve, to the byte those that they get when they come in one piece.
"""

import re

import pytest
import trio
from attrs import frozen
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.server.one_connection import open_pair

pytestmark = pytest.mark.real_clock

DATE = re.compile(rb"\r\ndate: [^\r]+")

derandomized = settings(
    max_examples=120,
    phases=[Phase.generate],
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@frozen
class Asked:
    """A request, as its bytes and as what has to come of it."""

    data: bytes
    answer: bytes


async def echo(scope, receive, send):
    """Answer with what was asked; a query makes it an answer in chunks."""
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event["body"], event["more_body"]
    told = answer_to(scope["method"], scope["path"], body)
    known = scope["query_string"] == b""
    headers = [(b"content-length", b"%d" % len(told))] if known else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": told, "more_body": not known})
    if not known:
        await send({"type": "http.response.body", "body": b"!", "more_body": True})
        await send({"type": "http.response.body"})


def answer_to(method, path, body):
    return b"%b %b %b" % (method.encode(), path.encode(), body)


async def answers_to(pieces):
    """Say *pieces*, each when the one before has been heard; return what is said to the end."""
    async with open_pair(echo) as client:
        for piece in pieces:
            try:
                await client.say(piece)
            except trio.BrokenResourceError:
                break  # it was refused, and is not listened to any more
        return DATE.sub(b"", await client.rest())


# ── What clients say ────────────────────────────────────────────────────────────────────────────

CHUNKS = st.lists(st.binary(min_size=1, max_size=20), max_size=12)
BAD = {
    "request line": b"no request\r\n\r\n",
    "header": b"GET / HTTP/1.1\r\nHost : t\r\n\r\n",
    "chunk": b"PUT / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\nno size\r\n",
    "two lengths": b"PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@st.composite
def requests(draw):
    """Draw a request, with or without a body, in chunks or not, asked for or not."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE"]))
    path, query = draw(st.sampled_from(["/", "/a/b"])), draw(st.sampled_from(["", "?q"]))
    chunks, chunked = draw(CHUNKS), draw(st.booleans())
    headers = draw(
        st.sampled_from([b"", b"Expect: 100-continue\r\n", b"X-Long: %b\r\n" % (b"x" * 300)])
    )
    end = draw(st.sampled_from([b"", b";ext=1"])), draw(st.sampled_from([b"", b"Trailer: x\r\n"]))
    body = b"".join(chunks)
    if chunked:
        headers += b"Transfer-Encoding: chunked\r\n"
        sent = b"".join(b"%x%b\r\n%b\r\n" % (len(each), end[0], each) for each in chunks)
        sent += b"0\r\n%b\r\n" % end[1]
    else:
        headers += b"Content-Length: %d\r\n" % len(body)
        sent = body
    head = f"{method} {path}{query} HTTP/1.1\r\nHost: t\r\n".encode()
    told = answer_to(method, path, body)
    framed = b"%x\r\n%b\r\n1\r\n!\r\n0\r\n\r\n" % (len(told), told) if query else told
    return Asked(head + headers + b"\r\n" + sent, framed)


@st.composite
def cut(draw, data):
    """Draw the pieces of *data*: cut at a few places, at none, or everywhere."""
    if draw(st.integers(0, 9)) == 0:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=8)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


LAST = Asked(b"GET /last HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", b"GET /last ")


@pytest.mark.explored
@derandomized
@given(asked=st.lists(requests(), max_size=4), data=st.data())
async def test_requests_are_answered_in_order_however_they_arrive(asked, data):
    asked = [*asked, LAST]
    said = b"".join(each.data for each in asked)
    whole = await answers_to([said])
    final = [each for each in whole.split(b"HTTP/1.1 ")[1:] if not each.startswith(b"100")]
    assert [each[:3] for each in final] == [b"200"] * len(asked)
    assert [each.partition(b"\r\n\r\n")[2] for each in final] == [each.answer for each in asked]
    assert await answers_to(data.draw(cut(said))) == whole


@pytest.mark.explored
@derandomized
@given(asked=st.lists(requests(), max_size=2), bad=st.sampled_from(sorted(BAD)), data=st.data())
async def test_what_is_no_request_is_refused_however_it_arrives(asked, bad, data):
    said = b"".join(each.data for each in asked) + BAD[bad]
    whole = await answers_to([said])
    assert whole.endswith(b"HTTP/1.1 400 \r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    assert whole.count(b"HTTP/1.1 200") == len(asked)
    assert await answers_to(data.draw(cut(said))) == whole
