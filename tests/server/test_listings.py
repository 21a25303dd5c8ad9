"""Long lists over HTTP: what is asked for, page by page, while others are answered."""

import orjson
import pytest
import trio

from crush_trio.server import bodies
from crush_trio.server.bodies import JsonPages, ValuePages
from crush_trio.store.pages import Hole
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say

A = client_id(1)


async def whole(pages):
    pieces = [await pages.read()]
    while pages.more:
        pieces.append(await pages.read())
    return pieces


# ── Arrays ──────────────────────────────────────────────────────────────────────────────────────


class Given:
    """Pages that a test has made."""

    def __init__(self, *pages):
        self.left = list(pages)

    @property
    def more(self):
        return bool(self.left)

    async def read(self):
        await trio.lowlevel.checkpoint()
        return self.left.pop(0)


@pytest.mark.parametrize(
    ("pages", "pieces"),
    [
        ([[]], [b"[]"]),
        ([[b"1"]], [b"[1]"]),
        ([[b"1,2"], [b"3"]], [b"[1,2", b",3]"]),
        ([[b"1"], []], [b"[1", b"]"]),
        ([[b"1", Hole("a", b"2")], [Hole("b", b"3")]], [b"[12", b",3]"]),
    ],
)
async def test_pages_make_an_array(pages, pieces):
    assert await whole(JsonPages(Given(*pages))) == pieces


@pytest.mark.parametrize("count", [0, 1, 200, 201, 1000])
async def test_values_make_an_array(count):
    pieces = await whole(JsonPages(ValuePages(list(range(count)))))
    assert orjson.loads(b"".join(pieces)) == list(range(count))
    assert len(pieces) == max(1, -(-count // bodies._VALUES_AT_ONCE))


async def test_others_have_their_turn_between_two_pages():
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await whole(JsonPages(ValuePages(list(range(5000)))))
        nursery.cancel_scope.cancel()
    assert turns > 5000 // bodies._VALUES_AT_ONCE // 2


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


async def listed(place, session, query=""):
    answer = await place.request("GET", f"/sessions/{session}/messages{query}")
    assert answer.status == 200, answer
    return answer.json()


async def test_the_newest_messages_lead_back_to_the_first():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        for number in range(7):
            with await place.watch(A) as events:
                await place.submit(session, f"prompt {number}", run_id=f"r{number}")
                await events.until(lambda event: event["type"] == "run_complete")
        everything = await listed(place, session)
        assert len(everything) == 14
        assert await listed(place, session, "?limit=14") == everything
        assert await listed(place, session, "?limit=1000000") == everything
        found, before = [], ""
        while part := await listed(place, session, f"?limit=4{before}"):
            found = part + found
            before = f"&before={part[0]['id']}"
        assert found == everything
        assert await listed(place, session, f"?before={everything[3]['id']}") == everything[:3]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "limit is not a number from 1 to 1000000"),
        ("limit=-1", "limit is not a number"),
        ("limit=", "limit is not a number"),
        ("limit=ten", "limit is not a number"),
        ("limit=1.5", "limit is not a number"),
        ("limit=1000001", "limit is not a number"),
        ("limit=99999999999999999999", "limit is not a number"),
        ("limit=%D9%A1", "limit is not a number"),  # a digit of another script
        ("before=", "before is empty"),
        ("before=nobody", "before: this session has no message nobody"),
        ("limit=1&before=nobody", "before: this session has no message nobody"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(query, words):
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        answer = await place.request("GET", f"/sessions/{session}/messages?{query}")
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")
        assert words in answer.json()["detail"]


@pytest.mark.item("D12")
async def test_an_answer_that_is_being_written_is_listed_as_it_is_now():
    """What waits to be stored is shown, and reading it stores nothing."""
    first, second = Gate("first"), Gate("second")
    turns = WrittenTurns({"go": [Say("one "), Pause(first), Say("two "), Pause(second)]})
    async with open_test_server(turns) as server:
        place = await server.create(A)
        session = await place.create_session()
        await place.submit(session, "go")
        await first.reached()
        await trio.sleep(1)  # stored
        first.open()
        await second.reached()
        commits = len(server.stores.of().commits)
        [_, answer] = await listed(place, session)
        assert answer["parts"][0]["data"]["text"] == "one two "
        assert len(server.stores.of().commits) == commits
        second.open()


@pytest.mark.heavy
async def test_a_long_list_comes_in_pieces_and_whole():
    async with open_test_server() as server:
        place = await server.create(A)
        for number in range(600):
            await place.request("POST", "/sessions", {"title": f"t{number}"})
        answer = await place.request("GET", "/sessions")
        assert len(answer.json()) == 600
        assert "content-length" not in answer.headers
        assert answer.headers["content-type"] == "application/json"
        head = await place.request("HEAD", "/sessions")
        assert (head.status, head.body) == (200, b"")
