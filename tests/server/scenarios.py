"""What clients of one server do to each other, told over any kind of connection to it.

Each scenario opens a server with the function it is given: one in memory, or one behind a socket.
They wait for gates and events and never for time, so the same text holds under both.
"""

from crush_trio.backend.settings import BackendSettings
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id
from crush_trio.testing.server.turns import Pause, Say

A, B = client_id(1), client_id(2)
AT_ONCE = BackendSettings(detach_grace=0, idle_linger=0)
"""Nobody waits for a client that has gone."""


# ── What was seen ───────────────────────────────────────────────────────────────────────────────


def ending_of(run_id):
    """Return a test for the terminal event of a run."""

    def wanted(event):
        return event["type"] == "run_complete" and entity(event).get("run_id") == run_id

    return wanted


def entity(event):
    return event["payload"]["payload"]


def finish_of(message):
    """Return the finish reason of a message; None while it has none."""
    reasons = [part["data"]["reason"] for part in message["parts"] if part["type"] == "finish"]
    return reasons[0] if reasons else None


def text_of(message):
    return "".join(part["data"]["text"] for part in message["parts"] if part["type"] == "text")


def answers(events):
    """Return the last state of each assistant message among *events*."""
    seen = [entity(event) for event in events if event["type"] == "message"]
    return list({m["id"]: m for m in seen if m["role"] == "assistant"}.values())


def answer_finishes(events):
    return [finish_of(message) for message in answers(events)]


def errors(events):
    """Return what the events complain about."""
    return [e for e in events if e["type"] == "agent_event" and entity(e).get("error")]


def turn(messages):
    """Return role, text and finish of stored messages."""
    return [(m["role"], text_of(m), finish_of(m)) for m in messages]


async def set_the_table(server, *clients):
    """Create a workspace for each client, the same for all, and a session in it."""
    places = [await server.create(client) for client in clients]
    assert len({place.id for place in places}) == 1
    return places[0], await places[0].create_session()


# ── Scenarios ───────────────────────────────────────────────────────────────────────────────────


async def cancelled_by_another_client(open_server):
    gate = Gate("speaking")
    async with open_server(WrittenTurns({"long": [Say("Hel"), Pause(gate)]})) as server:
        place, session = await set_the_table(server, A, B)
        with await place.watch(A) as a, await place.watch(B) as b:
            assert (await place.submit(session, "long", "r1")).status == 202
            await gate.reached()
            assert (await place.cancel(session)).status == 200
            for watcher in (a, b):
                assert entity(await watcher.until(ending_of("r1")))["cancelled"] is True
                assert answer_finishes(watcher.seen) == ["canceled"]
                assert errors(watcher.seen) == []
        expected = [("user", "long", "stop"), ("assistant", "Hel", "canceled")]
        assert turn(await place.messages(session)) == expected


async def cancelled_right_after_the_answer(open_server):
    gate = Gate("never opened")
    async with open_server(WrittenTurns({"long": [Pause(gate), Say("output")]})) as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A) as a:
            assert (await place.submit(session, "long", "r1")).status == 202
            assert (await place.cancel(session)).status == 200
            assert entity(await a.until(ending_of("r1")))["cancelled"] is True
            assert answer_finishes(a.seen) == ["canceled"]
        expected = [("user", "long", "stop"), ("assistant", "", "canceled")]
        assert turn(await place.messages(session)) == expected


async def idle_cancel(open_server):
    async with open_server(WrittenTurns()) as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A) as a:
            assert (await place.cancel(session)).status == 200
            assert (await place.submit(session, "next", "r1")).status == 202
            ending = entity(await a.until(ending_of("r1")))
            assert ending["text"] == "done"
            assert "cancelled" not in ending
            assert answer_finishes(a.seen) == ["end_turn"]


async def cancelled_before_it_spoke(open_server):
    """The run is active and its prompt is stored, but there is no answer yet."""
    gate = Gate("before the answer")
    async with open_server(WrittenTurns({"long": [Pause(gate), Say("output")]})) as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A) as a:
            assert (await place.submit(session, "long", "r1")).status == 202
            await gate.reached()
            assert (await place.cancel(session)).status == 200
            await a.until(ending_of("r1"))
            assert errors(a.seen) == []
            assert [m["role"] for m in map(entity, a.seen) if "role" in m] == ["user", "assistant"]
        expected = [("user", "long", "stop"), ("assistant", "", "canceled")]
        assert turn(await place.messages(session)) == expected


async def hung_up_during_the_post(open_server):
    gate = Gate("working")
    async with open_server(WrittenTurns({"work": [Pause(gate), Say("result")]})) as server:
        place, session = await set_the_table(server, A, B)
        with await place.watch(B) as b:
            body = {"session_id": session, "run_id": "r1", "prompt": "work"}
            with place.driver.open("POST", f"{place.path}/agent", body):
                await gate.reached()
            gate.open()
            assert entity(await b.until(ending_of("r1")))["text"] == "result"
            assert answer_finishes(b.seen) == ["end_turn"]


async def the_submitter_leaves(open_server):
    gate = Gate("working")
    turns = WrittenTurns({"work": [Pause(gate), Say("result")]})
    async with open_server(turns, settings=AT_ONCE) as server:
        place, session = await set_the_table(server, A, B)
        with await place.watch(B) as b:
            with await place.watch(A) as a:
                assert (await place.submit(session, "work", "r1")).status == 202
                await gate.reached()
            await a.exchange.ended()
            assert (await server.request("DELETE", f"/v1/clients/{A}")).status == 200
            assert (await place.request("GET")).status == 200
            gate.open()
            assert entity(await b.until(ending_of("r1")))["text"] == "result"
            assert answer_finishes(b.seen) == ["end_turn"]


async def cancel_takes_the_follow_up_along(open_server):
    gate = Gate("first")
    turns = WrittenTurns({"first": [Say("Hel"), Pause(gate)], "second": [Say("output")]})
    async with open_server(turns) as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A) as a:
            assert (await place.submit(session, "first", "r1")).status == 202
            await gate.reached()
            assert (await place.submit(session, "second", "r2")).status == 202
            assert (await place.cancel(session)).status == 200
            gate.open()
            await a.until(lambda _: {"r1", "r2"} <= ended_runs(a.seen))
            assert all(entity(e)["cancelled"] for e in a.seen if e["type"] == "run_complete")
            assert set(answer_finishes(a.seen)) == {"canceled"}
        assert turns.started == ["first"]
        assert (await place.request("GET", f"/agent/sessions/{session}/prompts/queued")).json() == 0


def ended_runs(events):
    return {entity(event).get("run_id") for event in events if event["type"] == "run_complete"}


async def permission_answers_have_their_shape(open_server):
    """Whoever answers a question that nobody asks is told that it settled nothing."""
    async with open_server(WrittenTurns()) as server:
        place, session = await set_the_table(server, A, B)
        asked = {"id": "p1", "session_id": session, "tool_call_id": "t1", "tool_name": "bash"}
        for action in ("allow", "allow_session", "deny"):
            grant = {"permission": {**asked, "params": None}, "action": action}
            told = await place.request("POST", "/permissions/grant", grant)
            assert (told.status, told.json()) == (200, {"resolved": False})
        grant = {"permission": asked, "action": "perhaps"}
        refused = await place.request("POST", "/permissions/grant", grant)
        assert refused.status == 400
        assert refused.json()["message"].startswith("invalid permission action")


async def two_clients_see_the_same(open_server):
    async with open_server(WrittenTurns({"hi": [Say("Hel"), Say("lo")]})) as server:
        place, session = await set_the_table(server, A, B)
        with await place.watch(A) as a, await place.watch(B) as b:
            assert (await place.submit(session, "hi", "r1")).status == 202
            await a.until(ending_of("r1"))
            await b.until(ending_of("r1"))
            assert answers(a.seen) == answers(b.seen)
            assert [text_of(message) for message in answers(a.seen)] == ["Hello"]


async def one_stream_is_killed(open_server):
    gate = Gate("between")
    turns = WrittenTurns({"hi": [Say("Hel"), Pause(gate), Say("lo")]})
    async with open_server(turns, settings=AT_ONCE) as server:
        place, session = await set_the_table(server, A, B)
        with await place.watch(A) as a, await place.watch(B) as b:
            assert (await place.submit(session, "hi", "r1")).status == 202
            await gate.reached()
            a.hang_up()
            await a.exchange.ended()
            gate.open()
            await b.until(ending_of("r1"))
            assert [text_of(message) for message in answers(b.seen)] == ["Hello"]
            again = await place.submit(session, "hi", "r2")
            assert again.status == 202
            await b.until(ending_of("r2"))


async def the_last_client_leaves(open_server):
    """Its workspace goes, and its run with it; the server then has nothing left to do."""
    gate = Gate("working")
    turns = WrittenTurns({"work": [Say("half"), Pause(gate)]})
    async with open_server(turns, settings=AT_ONCE) as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A):
            assert (await place.submit(session, "work", "r1")).status == 202
            await gate.reached()
        await server.backend.wait_shutdown()
        assert (await place.request("GET")).status == 404
        late = await server.request("POST", "/v1/workspaces", {"path": "/p", "client_id": B})
        assert late.status == 503
        (run,) = await server.stores.of().runs()
        assert run.state == "cancelled"


SCENARIOS = {
    cancelled_by_another_client: ("A18", "A19"),
    cancelled_right_after_the_answer: ("A9", "A21"),
    idle_cancel: ("A14",),
    cancelled_before_it_spoke: ("A19", "D20"),
    hung_up_during_the_post: ("A3", "A4"),
    the_submitter_leaves: ("E12", "E18"),
    cancel_takes_the_follow_up_along: ("A13", "A15"),
    permission_answers_have_their_shape: ("F2",),
    two_clients_see_the_same: ("E3", "G1"),
    one_stream_is_killed: ("E14",),
    the_last_client_leaves: ("E11", "E12", "E19", "E20"),
}
"""Every scenario, with the contract items it is about."""
