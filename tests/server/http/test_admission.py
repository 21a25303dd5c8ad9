"""Who is admitted, who gives way, and that a client over a limit hurts only itself."""

import errno
import logging
import os
import socket
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from math import inf

import orjson
import pytest
import trio
import trio.testing
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crush_trio.limits import SizeLimits
from crush_trio.server.http import admission as acceptor
from crush_trio.server.http.admission import Admission, Rarely, Stage, open_acceptor
from tests.server.raw_client import open_client
from tests.server.tiny_app import TinyApp, open_own_server, open_safe_hypercorn

PATIENT = (Stage.HEAD, Stage.FRESH, Stage.IDLE, Stage.BODY)
"""The stages in which a connection may have to give way, those that do so first in front."""

HALF = b"GET /hello HTTP/1.1\r\nHost: test\r\nX-Slow: "
SOON = 5.0


def gone(seat):
    return seat.life.cancel_called


def crowd(count, stage=Stage.BUSY, waiting=(), **limits):
    """Return the connections of a server, all waiting for the same, but for those that wait for us."""
    admission = Admission(SizeLimits(**limits), descriptors=inf, readable=waiting.__contains__)
    seats = [admission.admit(3) for _ in range(count)]
    for seat in seats:
        seat.move(stage)
    return admission, seats


# ── The order ───────────────────────────────────────────────────────────────────────────────────


async def test_the_first_to_give_way_is_the_oldest_whose_request_has_not_arrived():
    admission, (busy, fresh, idle, body, head, late) = crowd(6, connections=6)
    for seat, stage in ((fresh, Stage.FRESH), (idle, Stage.IDLE), (body, Stage.BODY)):
        seat.move(stage)
    for seat in (head, late):
        seat.move(Stage.HEAD)
    left, order = [], (head, late, fresh, idle, body)
    for _ in order:
        admission.admit(3).move(Stage.BUSY)
        left.append([seat for seat in order if gone(seat)])
    assert left == [list(order[: at + 1]) for at in range(len(order))]
    assert admission.admit(3) is None
    assert not gone(busy)


async def test_one_that_was_idle_for_longest_gives_way_first():
    admission, (first, second) = crowd(2, Stage.IDLE, connections=2)
    first.move(Stage.BUSY)
    first.move(Stage.IDLE)
    admission.admit(3)
    assert (gone(first), gone(second)) == (False, True)


async def test_one_head_too_many_has_the_oldest_give_way_although_there_is_room():
    admission, seats = crowd(3, Stage.HEAD, heads=3)
    late = admission.admit(3)
    assert not any(map(gone, seats))  # it has sent nothing so far
    late.move(Stage.HEAD)
    assert [gone(seat) for seat in (*seats, late)] == [True, False, False, False]
    seats[1].move(Stage.IDLE)
    admission.admit(3).move(Stage.HEAD)
    seats[1].move(Stage.HEAD)
    assert [gone(seat) for seat in (*seats, late)] == [True, False, True, False]


@pytest.mark.parametrize("stage", PATIENT)
async def test_one_of_which_something_has_arrived_does_not_give_way(stage):
    unread = [3]
    admission, seats = crowd(2, stage, unread, connections=2, heads=1)
    assert admission.admit(4) is None
    assert not any(map(gone, seats))
    unread.clear()
    assert admission.admit(4) is not None
    assert gone(seats[0])


async def test_half_of_the_descriptors_are_not_for_connections():
    admission = Admission(SizeLimits(connections=1000), 20, lambda _: False)
    seats = [admission.admit(3) for _ in range(10)]
    for seat in seats:
        seat.move(Stage.BUSY)
    assert admission.admit(3) is None
    seats[0].leave()
    seats[0].leave()
    assert admission.admit(3) is not None


async def test_the_last_descriptors_are_not_for_connections_however_few_there_are():
    """Files of a store and pipes of commands may have taken more than their half."""
    admission = Admission(SizeLimits(reserve=64), 256, lambda _: False)
    assert admission.admit(256 - 32) is None
    idle = admission.admit(256 - 33)
    idle.move(Stage.IDLE)
    assert admission.admit(255) is not None
    assert gone(idle)


async def test_one_that_gave_way_takes_no_place_whatever_it_still_does():
    admission, [seat] = crowd(1, Stage.HEAD)
    assert admission.make_room()
    seat.move(Stage.BUSY)
    assert (seat.stage, admission.count) == (Stage.HEAD, 0)
    seat.leave()
    assert not admission.make_room()


async def test_a_crowd_is_logged_once_in_a_while(caplog, autojump_clock):
    admission, _ = crowd(2, connections=2)
    for _ in range(100):
        admission.admit(3)
        await trio.sleep(0.1)
    assert caplog.messages == ["connections.refused"]
    await trio.sleep(60)
    admission.admit(3)
    assert [record.times for record in caplog.records] == [1, 100]


class Crowds(RuleBasedStateMachine):
    """Any order of coming, waiting and going."""

    def __init__(self):
        super().__init__()
        self.admission = Admission(
            SizeLimits(connections=4, heads=2), 100, lambda _descriptor: False
        )
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(Rarely, "due", lambda _self: 0)  # which asks for the time
        self.gone = set()
        self.here = []
        """Those that were admitted and have not left, in the order in which their waiting began."""

    def teardown(self):
        self.patch.undo()

    def seats(self, *stages):
        return [seat for seat in self.here if seat.stage in stages and seat not in self.gone]

    @rule(descriptor=st.sampled_from([3, 50, 87, 88, 99]))
    def come(self, descriptor):
        patient = [seat for stage in PATIENT for seat in self.seats(stage)]
        full = len(self.seats(*Stage)) >= 4 or descriptor >= 88
        seat = self.admission.admit(descriptor)
        assert (seat is None) == (full and not patient)
        if full and patient:
            assert patient[0] in self.gone
        if seat is not None:
            seat.give_way = partial(self.gone.add, seat)
            self.here.append(seat)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), stage=st.sampled_from(Stage))
    def wait_for_something_else(self, data, stage):
        seat = data.draw(st.sampled_from(self.here))
        if seat.stage is not stage and seat not in self.gone:
            self.here.remove(seat)
            self.here.append(seat)
        seat.move(stage)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def go(self, data):
        seat = data.draw(st.sampled_from(self.here))
        self.here.remove(seat)
        seat.leave()

    @invariant()
    def nobody_is_forgotten_and_no_limit_exceeded(self):
        assert self.admission.count == len(self.seats(*Stage)) <= 4
        assert self.admission.waiting(Stage.HEAD) == len(self.seats(Stage.HEAD)) <= 2
        assert not any(seat in self.gone for seat in self.here if seat.stage is Stage.BUSY)


TestCrowds = Crowds.TestCase


# ── Descriptors that have run out ───────────────────────────────────────────────────────────────


class Poor:
    """A listener whose process has no descriptor left, except for what the acceptor gives up."""

    def __init__(self, streams):
        self.streams, self.tries = streams, 0
        self.spare = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exc):
        pass

    async def accept(self):
        await trio.lowlevel.checkpoint()
        self.tries += 1
        if not self.streams:
            await trio.sleep_forever()
        if self.spare._descriptor is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.streams.pop()


async def test_a_client_is_answered_although_no_descriptor_is_left(caplog):
    ours, theirs = trio.socket.socketpair()
    listener = Poor([trio.SocketStream(ours)])
    async with trio.open_nursery() as nursery:
        async with open_acceptor(Admission(), None, nursery) as accepting:
            listener.spare = accepting._spare
            nursery.start_soon(accepting.accept_from, listener)
            said = await theirs.recv(1000)
            assert said.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
            assert orjson.loads(said.partition(b"\r\n\r\n")[2])["code"] == "too_many_connections"
            assert await theirs.recv(1000) == b""
        nursery.cancel_scope.cancel()
    theirs.close()
    assert caplog.messages == ["server.no_descriptors"]


async def test_a_process_without_descriptors_does_not_spin_and_logs_once(
    caplog, monkeypatch, autojump_clock
):
    """Not even the one that was kept can be had: another thread was faster."""
    monkeypatch.setattr(acceptor._Spare, "close", lambda _self: None)
    monkeypatch.setattr(acceptor._Spare, "_open", lambda self: setattr(self, "_descriptor", 7))
    listener = Poor(["nobody"])
    async with trio.open_nursery() as nursery:
        async with open_acceptor(Admission(), None, nursery) as accepting:
            listener.spare = accepting._spare
            nursery.start_soon(accepting.accept_from, listener)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
    assert listener.tries <= 2 * 10 / 0.1 + 2
    assert caplog.messages == ["server.no_descriptors"]


async def test_what_else_goes_wrong_with_accepting_is_raised():
    class Broken(Poor):
        async def accept(self):
            raise OSError(errno.EINVAL, "broken")

    async with open_acceptor(Admission(), None, None) as accepting:
        with pytest.raises(OSError, match="broken"):
            await accepting.accept_from(Broken([]))


# ── Over sockets ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def app():
    return TinyApp()


@pytest.fixture(params=[open_own_server, open_safe_hypercorn], ids=["own", "hypercorn"])
def open_server(request):
    return request.param


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_request_that_does_not_arrive_in_time_is_told_so(app, open_server):
    limits = SizeLimits(head_time=0.3)
    async with open_server(app.quart, sizes=limits) as server, open_client(server.address) as slow:
        with trio.fail_after(SOON):
            await slow.stream.send_all(HALF)
            said = await slow.wait_closed()
        if open_server is open_own_server:
            assert said.startswith(b"HTTP/1.1 408")
            assert b'"code":"request_too_slow"' in said


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_client_that_says_a_little_now_and_then_has_no_more_time(app):
    limits = SizeLimits(head_time=0.3)
    async with open_own_server(app.quart, sizes=limits) as server:
        async with open_client(server.address) as slow:
            assert await slow.get("/hello") == (200, b"hello")
            await trio.sleep(0.5)  # idle, which is something else
            with trio.fail_after(SOON), suppress(trio.BrokenResourceError):
                await slow.stream.send_all(HALF)
                while True:
                    await slow.stream.send_all(b"x")
                    await trio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_body_that_does_not_arrive_is_not_waited_for_for_ever(app):
    async with open_own_server(app.quart, keep_alive=0.3) as server:
        async with open_client(server.address) as slow:
            await slow.stream.send_all(
                b"POST /hello HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nx"
            )
            with trio.fail_after(SOON):
                assert (await slow.wait_closed()).startswith(b"HTTP/1.1 4")


@pytest.mark.slow
@pytest.mark.real_clock
async def test_half_sent_heads_keep_nobody_out(app, open_server, caplog):
    limits = SizeLimits(connections=8, heads=4)
    async with open_server(app.quart, sizes=limits) as server, trio.open_nursery() as nursery:

        async def hold(task_status):
            async with open_client(server.address) as slow:
                await slow.stream.send_all(HALF)
                task_status.started()
                await slow.wait_closed()

        with trio.fail_after(SOON):
            for _ in range(30):
                await nursery.start(hold)
            async with open_client(server.address) as client:
                assert await client.get("/hello") == (200, b"hello")
                assert await client.get("/hello") == (200, b"hello")
        nursery.cancel_scope.cancel()
    messages = [each.msg for each in caplog.records if each.levelno >= logging.WARNING]
    assert messages == ["connections.gave_way"]


@pytest.mark.slow
@pytest.mark.real_clock
async def test_many_who_come_at_the_same_moment_are_all_served(app, open_server):
    """They have sent their requests before the server had time to look at any of them."""
    limits = SizeLimits(heads=3)
    async with open_server(app.quart, sizes=limits) as server:
        with ExitStack() as stack:
            place = server.address.host, server.address.port
            clients = [
                stack.enter_context(socket.create_connection(place, timeout=SOON))
                for _ in range(50)
            ]
            for client in clients:  # none of this lets the server run
                client.sendall(b"GET /hello HTTP/1.1\r\nHost: test\r\n\r\n")
            for client in clients:
                said = await trio.to_thread.run_sync(client.recv, 1000)
                assert said.startswith(b"HTTP/1.1 200")


@pytest.mark.slow
@pytest.mark.real_clock
async def test_many_who_connect_first_and_ask_later_are_all_served(app, open_server):
    async with open_server(app.quart, sizes=SizeLimits(heads=3)) as server:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(open_client(server.address)) for _ in range(20)
            ]
            await trio.testing.wait_all_tasks_blocked(0.05)
            for client in clients:
                assert await client.get("/hello") == (200, b"hello")


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_client_for_which_there_is_no_room_is_told_so_at_once(app, open_server):
    limits = SizeLimits(connections=2)
    async with open_server(app.quart, sizes=limits) as server:
        async with open_client(server.address) as one, open_client(server.address) as other:
            for client in (one, other):
                await client.request("/quiet")
                assert (await client.next_event()).status_code == 200
            with trio.fail_after(SOON):
                async with open_client(server.address) as late:
                    await late.request("/hello")
                    head, body = await late.answer()
            assert (head.status_code, orjson.loads(body)["code"]) == (429, "too_many_connections")
            app.draining.set()
            await one.wait_closed()
        async with open_client(server.address) as late:
            assert await late.get("/hello") == (200, b"hello")
