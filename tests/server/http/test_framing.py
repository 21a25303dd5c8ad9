"""The short way around h11: taken for nothing that h11 would see otherwise, and with the same bytes."""

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.server.http.framing import HEAD_SIZE, Framing, PlainRequest, plain_request

HOST = (b"Host", b"t")
PLAIN = b"GET /a?b=c HTTP/1.1\r\nHost: t\r\nAccept: */*\r\nX-Empty:\r\n\r\n"
DATE = (b"date", b"Mon, 17 Nov 2025 05:00:00 GMT")


def by_h11(data):
    """Return what h11 makes of *data*: its events, until it needs more or finds fault."""
    http, found = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_SIZE), []
    http.receive_data(data)
    try:
        while not isinstance(event := http.next_event(), type):  # it needs more, or waits for us
            found.append(event)
    except h11.RemoteProtocolError:
        return None, http
    return found, http


def agrees(data):
    """Check that what is taken the short way is just what h11 would have made of it."""
    plain = plain_request(data)
    if plain is None:
        return False
    found, http = by_h11(data)
    request, *body, end = found
    assert isinstance(end, h11.EndOfMessage)
    assert plain.body == b"".join(bytes(each.data) for each in body)
    assert not http.trailing_data[0]
    assert (plain.method, plain.target, plain.http_version) == (
        request.method,
        request.target,
        request.http_version,
    )
    assert list(plain.headers) == list(request.headers)
    checked = Framing()  # in two pieces it goes the long way, where lines are checked
    checked.receive(data[:1])
    checked.receive(data[1:])
    short = Framing()
    short.receive(data)
    assert (checked.next_event(), short.next_event()) == (request, plain)
    for event in (*body, end):
        assert checked.next_event() == short.next_event() == event
        assert checked.their_state is short.their_state
    return True


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "more",
    [
        b"",
        b"Accept: text/html, */*;q=0.1\r\n",
        b"X: \t padded\tvalue \t\r\n",
        b"Connection: keep-alive\r\n",
        b"connection: Keep-Alive\r\n",
        b"Content-Length: 0\r\n",
        b"Authorization: Bearer abc\r\n",
    ],
)
def test_an_ordinary_request_is_taken_the_short_way(more):
    assert agrees(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:8\r\n" + more + b"\r\n")


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace(b"GET", b"HEAD"),
        PLAIN.replace(b"GET", b"OPTIONS"),
        PLAIN.replace(b"GET", b"get"),
        PLAIN.replace(b"1.1", b"1.0"),
        PLAIN.replace(b"1.1", b"1.2"),
        PLAIN.replace(b"/a", b"http://t/a"),
        PLAIN.replace(b"/a", b"*"),
        PLAIN.replace(b"/a", b"/\xc3\xa4"),
        PLAIN.replace(b"/a", b"/ a"),
        PLAIN.replace(b"GET ", b"GET  "),
        PLAIN.replace(b"Host: t\r\n", b""),
        PLAIN.replace(b"Host: t\r\n", b"Host: t\r\nHost: t\r\n"),
        PLAIN.replace(b"Accept", b"Connection: close\r\nAccept"),
        PLAIN.replace(b"Accept", b"Connection: upgrade\r\nUpgrade: h2c\r\nAccept"),
        PLAIN.replace(b"Accept", b"Content-Length: 1\r\nAccept"),
        PLAIN.replace(b"Accept", b"Content-Length: 00\r\nAccept"),
        PLAIN.replace(b"Accept", b"Transfer-Encoding: chunked\r\nAccept"),
        PLAIN.replace(b"Accept", b"Expect: 100-continue\r\nAccept"),
        PLAIN.replace(b"Accept: ", b"Accept : "),
        PLAIN.replace(b"Accept", b" Accept"),
        PLAIN.replace(b"*/*", b"*/\x00*"),
        PLAIN.replace(b"*/*", b"*/\xff*"),
        PLAIN.replace(b"*/*", b"*\n*"),
        PLAIN.replace(b"*/*", b"*\r*"),
        PLAIN.replace(b"\r\n", b"\n"),
        PLAIN[:-1],
        PLAIN + PLAIN,
        PLAIN + b"x",
        b"\r\n" + PLAIN,
        b"",
        b"\r\n\r\n",
        PLAIN.replace(b"*/*", b"x" * HEAD_SIZE),
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_h11(data):
    assert plain_request(data) is None


SENT = b"POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nX: y\r\n\r\na\r\nb"


@pytest.mark.parametrize("method", [b"DELETE", b"PATCH", b"POST", b"PUT", b"GET"])
@pytest.mark.parametrize("body", [b"x", b"\r\n\r\n", b"\0" * 20_000, b"POST / HTTP/1.1\r\n\r\n"])
def test_a_body_that_came_with_its_head_is_taken_the_short_way(method, body):
    head = method + b" /a HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"
    assert agrees(head % len(body) + body)
    assert agrees(method + b" /a HTTP/1.1\r\nHost: t\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        SENT[:-1],
        SENT + b"x",
        SENT + SENT,
        SENT.replace(b": 4", b": 04"),
        SENT.replace(b": 4", b": +4"),
        SENT.replace(b": 4", b": 4, 4"),
        SENT.replace(b": 4", b":"),
        SENT.replace(b": 4", b": 4444444444"),
        SENT.replace(b"X: y", b"Content-Length: 4"),
        SENT.replace(b"X: y", b"Content-Length: 5"),
        SENT.replace(b"X: y", b"Transfer-Encoding: chunked"),
        SENT.replace(b"X: y", b"Expect: 100-continue"),
        SENT.replace(b"Content-Length: 4\r\n", b""),
        SENT.replace(b"POST", b"Post"),
        SENT.replace(b"POST", b"CONNECT"),
        SENT.replace(b"y", b"y" * HEAD_SIZE),
    ],
)
def test_a_body_of_another_length_is_left_to_h11(data):
    assert plain_request(data) is None


def whole(data, size):
    """Give *data* in pieces of *size*; return whether a request has arrived whole."""
    framing, event = Framing(), None
    for at in range(0, len(data), size):
        framing.receive(data[at : at + size])
        while not isinstance(event := framing.next_event(), type | h11.EndOfMessage):
            pass
    return isinstance(event, h11.EndOfMessage)


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace(b"\r\n", b"\n"),
        PLAIN.replace(b"t\r\n", b"t\n"),
        PLAIN[:-2] + b"\n",
        PLAIN.replace(b"Accept", b" Accept"),
        PLAIN.replace(b"Accept", b"\tAccept"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_bare_line_feeds_and_folded_lines_are_refused_however_they_arrive(data, size):
    assert by_h11(data)[0] is not None
    with pytest.raises(h11.RemoteProtocolError, match="CR LF"):
        whole(data, size)


@pytest.mark.parametrize("end", [b"0\r\n\n", b"0\r\nA: b\n\r\n", b"0\r\nA: b\r\n c\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_lines_after_the_last_chunk_are_checked_as_those_of_a_head(end, size):
    head = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"4\r\n\r\n\n \r\n"
    assert whole(head + body + b"0\r\nA: b\r\n\r\n", size)
    with pytest.raises(h11.RemoteProtocolError):
        whole(head + body + end, size)


token = st.text("!#$%&'*+-.^_`|~aZ09", min_size=1, max_size=8).map(str.encode)
name = token | st.sampled_from(
    [b"Host", b"Connection", b"Content-Length", b"Transfer-Encoding", b"TE", b"Upgrade", b"Expect"]
)
value = st.text('a \t,;="\x7f\x80\x00é', max_size=8).map(lambda text: text.encode("latin-1"))
line = st.tuples(
    name, st.sampled_from([b": ", b":", b" :", b":\t"]), value | st.just(b"keep-alive")
)
newline = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r"])


@st.composite
def heads(draw):
    target = draw(st.sampled_from([b"/", b"/a%20b?c=d", b"/\xff", b"a", b"//", b"/a b"]))
    version = draw(st.sampled_from([b"1.1"] * 5 + [b"1.0", b"1.11"]))
    method, body = draw(st.sampled_from([b"GET", b"POST", b"PUT"])), draw(st.binary(max_size=3))
    lines = [b"%b %b HTTP/%b" % (method, target, version)]
    lines += [b"".join(each) for each in draw(st.lists(line, max_size=4))]
    lines.insert(draw(st.integers(1, len(lines))), b"Host: t")
    length = draw(st.sampled_from([len(body)] * 4 + [len(body) + 1, 0]))
    if length or draw(st.booleans()):
        lines.insert(draw(st.integers(1, len(lines))), b"Content-Length: %d" % length)
    return b"".join(each + draw(newline) for each in [*lines, b""]) + body


@pytest.mark.explored
@given(heads())
@settings(max_examples=1500, deadline=None)
def test_whatever_is_taken_the_short_way_is_what_h11_would_have_made_of_it(data):
    agrees(data)


@pytest.mark.heavy
@given(st.sampled_from([PLAIN, SENT]), st.integers(0, len(PLAIN) - 1), st.binary(max_size=3))
@settings(max_examples=1500, deadline=None)
def test_no_change_of_an_ordinary_request_is_taken_for_another_one(data, at, change):
    agrees(data[:at] + change + data[at + 1 :])


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


def asked(data=PLAIN):
    """Return the framing of a connection on which *data* was asked for."""
    framing = Framing()
    framing.receive(data)
    assert not isinstance(framing.next_event(), type)
    assert isinstance(framing.next_event(), h11.EndOfMessage)
    return framing


def answer(framing, status, headers, *pieces):
    said, first = b"", True
    for at, piece in enumerate(pieces):
        more = at + 1 < len(pieces)
        said += (
            framing.begin(status, headers, piece, more=more)
            if first
            else framing.go_on(piece, more=more)
        )
        first = False
    return said


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("body", [b"", b"hello", bytes(range(256))])
def test_a_whole_answer_has_the_bytes_of_h11(status, body):
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body)), DATE]
    short, long = asked(), asked()
    long.hand_over()
    assert answer(short, status, headers, body) == answer(long, status, headers, body)
    assert (short.our_state, short.their_state) == (long.our_state, long.their_state)


@pytest.mark.parametrize(
    ("status", "headers", "pieces"),
    [
        (200, [(b"content-length", b"2")], [b"a", b"b"]),
        (200, [], [b"a", b"b"]),
        (200, [], [b"ab"]),
        (204, [], [b""]),
        (304, [(b"content-length", b"0")], [b""]),
        (200, [(b"content-length", b"2"), (b"x-other", b"1")], [b"ab"]),
        (200, [(b"content-length", b"2"), (b"connection", b"close")], [b"ab"]),
    ],
)
def test_any_other_answer_is_made_by_h11(status, headers, pieces):
    short, long = asked(), asked()
    long.hand_over()
    assert answer(short, status, headers, *pieces) == answer(long, status, headers, *pieces)
    assert short.our_state is long.our_state


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"3")],
        [(b"content-length", b"2"), (b"content-type", b"a\r\nx: y")],
        [(b"content-length", b"2"), (b"content-type", b"a\x00b")],
    ],
)
def test_an_answer_that_h11_refuses_is_refused(headers):
    with pytest.raises(h11.LocalProtocolError):
        answer(asked(), 200, headers, b"ab")


def test_requests_of_both_kinds_take_turns():
    framing = Framing()
    whole = [(b"content-length", b"1")]
    for data in (PLAIN, PLAIN.replace(b"GET", b"DELETE"), PLAIN, PLAIN + PLAIN, PLAIN):
        framing.receive(data)
        for _ in range(data.count(b"HTTP/1.1")):
            request = framing.next_event()
            assert isinstance(request, PlainRequest | h11.Request)
            assert isinstance(framing.next_event(), h11.EndOfMessage)
            assert answer(framing, 200, whole, b"x").endswith(b"\r\n\r\nx")
            assert framing.our_state is framing.their_state is h11.DONE
            framing.next_cycle()
        assert framing.next_event() is h11.NEED_DATA
    framing.receive(b"")
    assert isinstance(framing.next_event(), h11.ConnectionClosed)


def test_a_request_with_a_body_can_be_handed_to_h11():
    framing = Framing()
    framing.receive(SENT)
    assert framing.next_event().method == b"POST"
    assert bytes(framing.next_event().data) == b"a\r\nb"
    framing.hand_over()
    assert isinstance(framing.next_event(), h11.EndOfMessage)
    assert framing.their_state is h11.DONE


def test_an_interim_response_can_be_sent_whichever_way_the_request_took():
    framing = asked()
    assert framing.interim
    assert framing.inform().startswith(b"HTTP/1.1 100")
    assert b"200" in answer(framing, 200, [(b"content-length", b"1")], b"x")
