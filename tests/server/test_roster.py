"""The roster: what every session of a server does or needs, as a value and as it changes."""

from contextlib import aclosing

import trio
import trio.testing

from crush_trio.backend.settings import BackendSettings
from crush_trio.server.roster.changes import GONE, RosterChanges
from crush_trio.server.roster.feeds import NoWorkspace
from crush_trio.server.roster.following import PACE
from crush_trio.server.roster.recent import MOST, RecentDirectories
from crush_trio.server.settings import ServerSettings
from crush_trio.server.sse import Drain, stream
from crush_trio.store.changes import SessionCreated
from crush_trio.store.errors import StoreFailed
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.forwarding_store import ForwardingStore
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Fail, Pause, Say
from crush_trio.wire.ids import SessionId
from crush_trio.wire.views import Roster, Session
from tests.server.asker import open_room
from tests.server.page_client import open_page

A, B = client_id(1), client_id(2)


async def roster_of(server):
    answer = await server.request("GET", "/v1/roster")
    assert answer.status == 200, answer
    return answer.json()


async def groups_of(server):
    return {row["title"]: row["group"] for row in (await roster_of(server))["sessions"]}


def tasks():
    """Return the names of all tasks that follow a roster."""
    found, queue = [], [trio.lowlevel.current_root_task()]
    for task in queue:
        if task is not None:
            found.append(task.name)
            queue += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(name for name in found if name.startswith("roster"))


# ── As a value ──────────────────────────────────────────────────────────────────────────────────


async def test_sessions_are_in_three_groups():
    gate = Gate("working")
    turns = WrittenTurns({"work": [Say("a"), Pause(gate)], "fail": [Fail(ValueError("no"))]})
    async with open_test_server(turns) as server:
        place = await server.create(A)
        for title in ("work", "fail", "idle"):
            session = await place.create_session(title)
            if title != "idle":
                await place.submit(session, title)
        await gate.reached()
        await trio.sleep(1)
        found = await roster_of(server)
        assert {row["title"]: (row["group"], row["needs"]) for row in found["sessions"]} == {
            "work": ("working", []),
            "fail": ("needs_you", ["error"]),
            "idle": ("idle", []),
        }
        [working] = [row for row in found["sessions"] if row["title"] == "work"]
        assert working["run"]["state"] == "active"
        assert working["run"]["started_at"] > 0
        assert working["queue"] == 0
        assert working["message_count"] == 2
        [workspace] = found["workspaces"]
        assert (workspace["path"], workspace["name"]) == ("/srv/project", "project")
        assert found["right"] == "admin"
        gate.open()


async def test_a_failed_session_is_idle_again_after_a_run_that_did_not_fail():
    async with open_test_server(WrittenTurns({"fail": [Fail(ValueError("no"))]})) as server:
        place = await server.create(A)
        session = await place.create_session("one")
        for prompt, group in (("fail", "needs_you"), ("hello", "idle")):
            await place.submit(session, prompt)
            await trio.sleep(1)
            assert await groups_of(server) == {"one": group}


async def test_the_queue_is_counted():
    gate = Gate("working")
    async with open_test_server(WrittenTurns({"work": [Pause(gate)]})) as server:
        place = await server.create(A)
        session = await place.create_session("one")
        for number, prompt in enumerate(("work", "next", "later")):
            await place.submit(session, prompt, run_id=f"r{number}")
        await gate.reached()
        [row] = (await roster_of(server))["sessions"]
        assert (row["queue"], row["group"]) == (2, "working")
        gate.open()


async def test_the_session_of_a_subagent_has_no_row_and_its_asks_count_for_its_parent():
    async with open_room() as room:
        child = Session(id=SessionId("m$$t"), parent_session_id=SessionId(room.session))
        await room.opened.store.commit(SessionCreated(session=child))
        with await open_page(room.server) as page:
            room.session, parent = child.id, room.session
            await room.submit("allow?", "r1")
            await page.shows(parent, "needs_you", "permission")
            found = await roster_of(room.server)
            assert [row["id"] for row in found["sessions"]] == [parent]
            [asked] = await room.get("/permissions")
            await room.grant(asked)
            await page.shows(parent, "idle")


# ── As it changes ───────────────────────────────────────────────────────────────────────────────


async def test_a_permission_and_a_question_need_a_person_until_they_are_answered():
    async with open_room() as room:
        with await open_page(room.server) as page:
            await room.submit("allow?", "r1")
            await page.shows(room.session, "needs_you", "permission")
            [asked] = await room.get("/permissions")
            await room.grant(asked)
            await page.shows(room.session, "idle")

            await room.submit("question?", "r2")
            await page.shows(room.session, "needs_you", "question")
            await room.place.request("POST", f"/agent/sessions/{room.session}/cancel")
            await page.shows(room.session, "idle")


async def test_a_failed_run_needs_a_person_until_the_next_run():
    gate = Gate("next")
    turns = WrittenTurns({"fail": [Fail(ValueError("no"))], "work": [Pause(gate)]})
    async with open_test_server(turns) as server:
        place = await server.create(A)
        session = await place.create_session()
        with await open_page(server) as page:
            await place.submit(session, "fail")
            await page.shows(session, "needs_you", "error")
            await place.submit(session, "work")
            await page.shows(session, "working")
            gate.open()
            await page.shows(session, "idle")


async def test_a_session_that_changes_all_the_time_is_told_a_few_times_a_second():
    async with open_test_server() as server:
        place = await server.create(A)
        herd = [await place.create_session(f"session {number}") for number in range(20)]
        hosted = server.backend.workspaces()[0]
        with await open_page(server) as page:
            began = trio.current_time()
            for step in range(100):
                for session in herd:
                    body = {"id": session, "title": f"{session} step {step}"}
                    await place.request("PUT", f"/sessions/{session}", body)
                await trio.sleep(0.01)
            await page.until(
                lambda page: all(page.sessions[s]["title"] == f"{s} step 99" for s in herd)
            )
            seconds = trio.current_time() - began
            told = page.names().count("roster_session")
            assert hosted.events.head > 2000
            assert told <= len(herd) * (seconds / PACE + 2)
            assert told >= 2 * len(herd)


async def test_a_session_that_is_deleted_leaves_the_roster():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        with await open_page(server) as page:
            assert session in page.sessions
            await place.request("DELETE", f"/sessions/{session}")
            await page.until(lambda page: session not in page.sessions)


async def test_workspaces_come_and_go_while_a_page_reads():
    async with open_test_server() as server:
        first = await server.create(A, "/srv/one")
        with await open_page(server) as page:
            second = await server.create(A, "/srv/two")
            await page.until(lambda page: second.id in page.workspaces)
            session = await second.create_session("later")
            await page.shows(session, "idle")
            await second.request("DELETE", f"?client_id={A}")
            await page.until(lambda page: second.id not in page.workspaces)
            assert first.id in page.workspaces
            again = await server.create(A, "/srv/two")
            await page.until(lambda page: again.id in page.workspaces)
            await page.shows(session, "idle")


async def test_nothing_is_followed_while_no_page_reads():
    async with open_test_server() as server:
        place = await server.create(A)
        assert tasks() == []
        pages = [await open_page(server) for _ in range(3)]
        assert tasks() == ["roster", "roster of one"]
        for page in pages[1:]:
            page.exchange.hang_up()
            await page.exchange.ended()
        assert tasks() == ["roster", "roster of one"]
        pages[0].exchange.hang_up()
        await pages[0].exchange.ended()
        await trio.testing.wait_all_tasks_blocked()
        assert tasks() == []
        assert not server.server.roster.followed
        with await open_page(server) as page:  # and again, from the beginning
            session = await place.create_session()
            await page.shows(session, "idle")


async def test_a_hundred_pages_see_the_same():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        pages = [await open_page(server) for _ in range(100)]
        await place.submit(session, "hello")
        for page in pages:
            await page.until(lambda page: page.sessions[session]["message_count"] == 2)
        assert tasks() == ["roster", "roster of one"]
        for page in pages:
            page.exchange.hang_up()
            await page.exchange.ended()
        await trio.testing.wait_all_tasks_blocked()
        assert tasks() == []


async def test_a_page_that_does_not_read_costs_nothing_and_gets_the_newest_state():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session("a")
        roster = Roster(directory="", version="", right="watch")
        with server.server.roster.reading(roster) as reader:
            await reader.loaded()
            feed = NoWorkspace(Drain())
            async with aclosing(
                stream(feed, boot="", drain=Drain(), first=reader.whole(), beside=reader)
            ) as frames:
                while b"event: ready" not in await anext(frames):
                    pass
                for number in range(50):
                    body = {"id": session, "title": f"title {number}"}
                    await place.request("PUT", f"/sessions/{session}", body)
                    await trio.sleep(2 * PACE)
                told = await anext(frames)
        assert told.count(b"event: roster_session") == 1
        assert b"title 49" in told


async def test_a_store_that_cannot_be_read_is_asked_again(monkeypatch):
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        read, broken = ForwardingStore.overview, True

        async def overview(store, session_ids=None):
            await trio.lowlevel.checkpoint()
            if broken:
                raise StoreFailed
            return await read(store, session_ids)

        monkeypatch.setattr(ForwardingStore, "overview", overview)
        assert (await roster_of(server))["sessions"] == []
        with await open_page(server) as page:
            assert page.sessions == {}
            assert page.workspaces.keys() == {place.id}
            broken = False
            await page.shows(session, "idle")


async def test_a_roster_that_fails_leaves_the_workspaces_alone(monkeypatch, caplog):
    async with open_test_server() as server:
        place = await server.create(A)

        async def overview(_store, _session_ids=None):
            await trio.lowlevel.checkpoint()
            raise ZeroDivisionError

        monkeypatch.setattr(ForwardingStore, "overview", overview)
        with await open_page(server) as page:
            assert page.workspaces == {}
            assert "roster.failed" in caplog.text
            await place.create_session()


async def test_a_page_without_a_workspace_ends_with_the_server():
    async with open_test_server() as server:
        page = await open_page(server)
        server.server.drain.announce()
        await page.rest()
        assert page.names() == ["roster", "ready", "end"]
        assert page.seen[1][2]["position"] is None
        assert page.seen[-1][2] == {"reason": "server_shutting_down"}


async def test_a_page_beats_while_nothing_happens():
    async with open_test_server() as server:
        with await open_page(server) as page:
            await page.event("heartbeat")
            await page.event("heartbeat")
            assert trio.current_time() >= 30


async def test_a_backend_that_closes_does_not_wait_for_pages():
    settings = BackendSettings()
    async with open_test_server(settings=settings) as server:
        await server.create(A)
        page = await open_page(server)
    assert (await page.rest())[-1][0] == "end"


async def test_a_session_without_its_workspace_is_refused():
    async with open_test_server() as server:
        answer = await server.request("GET", "/v1/events?session=s")
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")
        answer = await server.request("GET", f"/v1/events?workspace=none&client_id={A}")
        assert (answer.status, answer.json()["code"]) == (404, "workspace_not_found")
        place = await server.create(A)
        answer = await server.request("GET", f"/v1/events?workspace={place.id}")
        assert (answer.status, answer.json()["code"]) == (400, "client_id_missing")
        assert tasks() == []


# ── Searching ───────────────────────────────────────────────────────────────────────────────────


async def test_a_search_looks_at_all_workspaces():
    async with open_test_server() as server:
        for path in ("/srv/one", "/srv/two"):
            place = await server.create(A, path)
            await place.submit(await place.create_session("a title"), f"look at {path}")
            await trio.sleep(2)
        found = (await server.request("GET", "/v1/search?q=LOOK")).json()
        assert [hit["snippet"] for hit in found] == ["look at /srv/two", "look at /srv/one"]
        assert found[0].keys() == {
            *("workspace_id", "session_id", "title", "message_id", "role", "snippet", "at")
        }
        [titled] = (await server.request("GET", "/v1/search?q=title&limit=1")).json()
        assert (titled["message_id"], titled["role"]) == (None, "")
        for short in ("", "?q=", "?q=a", "?q=%20a%20", "?q=ab&limit=0", "?q=ab&limit=999"):
            answer = await server.request("GET", f"/v1/search{short}")
            assert (answer.status, answer.json()["code"]) == (400, "bad_request"), short


# ── Changes for readers at any speed ────────────────────────────────────────────────────────────


def test_a_reader_gets_the_newest_frame_of_each_row_in_order():
    changes = RosterChanges()
    for row, frame in (("a", b"a1"), ("b", b"b1"), ("a", b"a2")):
        changes.put(row, lambda frame=frame: frame)
    assert changes.since(0) == b"b1a2"
    assert changes.since(2) == b"a2"
    assert changes.since(changes.version) == b""
    changes.put("b", lambda: b"gone", gone=True)
    assert changes.since(2) == b"a2gone"


def test_a_reader_that_may_miss_an_end_must_start_again():
    changes = RosterChanges()
    changes.put("first", bytes, gone=True)
    for number in range(GONE):
        assert changes.since(0) is not None
        changes.put(number, bytes, gone=True)
    assert changes.since(0) is None
    assert changes.since(1) is not None


# ── Recent directories ──────────────────────────────────────────────────────────────────────────


async def test_recent_directories_are_those_that_exist_the_last_first(tmp_path, autojump_clock):
    file = ServerSettings.from_environment({"HOME": str(tmp_path)}).recent
    assert file.is_relative_to(tmp_path)
    recent = RecentDirectories(file)
    assert await recent.read() == ()
    for number in range(MOST + 3):
        (tmp_path / f"d{number}").mkdir()
        await recent.note(str(tmp_path / f"d{number}"), 1000 + number)
    (tmp_path / "d20").rmdir()
    found = await RecentDirectories(file).read(without=[str(tmp_path / "d22")])
    assert [each.path.rpartition("/")[2] for each in found][:2] == ["d21", "d19"]
    assert len(found) == MOST - 2


async def test_a_broken_file_is_no_reason_to_fail(tmp_path):
    file = tmp_path / "recent.json"
    file.write_text("{")
    recent = RecentDirectories(file)
    assert await recent.read() == ()
    await recent.note(str(tmp_path), 5)
    assert [each.path for each in await recent.read()] == [str(tmp_path)]
    unwritable = RecentDirectories(tmp_path / "recent.json" / "below")
    await unwritable.note(str(tmp_path), 5)
    assert await unwritable.read() == ()
