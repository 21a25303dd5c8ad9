"""The roster, the search and the usage of any node cover all nodes; the rows of a roster from several sources."""

from contextlib import AsyncExitStack
from random import Random

import pytest
import trio

from crush_trio.server.roster.table import HERE, RosterTable
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id
from crush_trio.testing.server.turns import Pause, Say
from crush_trio.wire.ids import SessionId, WorkspaceId
from crush_trio.wire.views import (
    Roster,
    RosterSession,
    RosterWorkspace,
    SessionGroup,
)
from tests.server.cluster.nodes import LIMIT, open_node_server, open_two_nodes, project
from tests.server.page_client import parsed
from tests.store.postgres.server import connect, new_database

# ── Between real nodes ──────────────────────────────────────────────────────────────────────────


@pytest.mark.real_clock
async def test_a_session_that_runs_on_one_node_is_in_the_roster_of_the_other(tmp_path):
    gate = Gate("working")
    turns = WrittenTurns({"work": [Say("a"), Pause(gate), Say("needle")]})
    async with open_two_nodes(new_database(), tmp_path, turns=turns) as (first, second):
        mine = await first.create(project(tmp_path))
        theirs = await second.create(project(tmp_path, "other"), client_id(2))
        running, idle = await mine.session("runs"), await theirs.session("waits")
        await mine.submit(running, "work")
        await gate.reached()
        for node in (first, second):
            told = (await node.ask("GET", "/v1/roster")).json()
            assert {row["id"] for row in told["workspaces"]} == {mine.id, theirs.id}
            found = {row["id"]: (row["workspace_id"], row["group"]) for row in told["sessions"]}
            assert found == {running: (mine.id, "working"), idle: (theirs.id, "idle")}
        gate.open()


@pytest.mark.real_clock
async def test_the_stream_of_a_node_follows_sessions_of_the_other(tmp_path):
    gate = Gate("working")
    turns = WrittenTurns({"work": [Say("a"), Pause(gate)]})
    async with open_two_nodes(new_database(), tmp_path, turns=turns) as (first, second):
        async with second.page() as page, second.page() as beside:
            mine = await first.create(project(tmp_path))
            session = await mine.session("early")
            await mine.submit(session, "work")
            await gate.reached()
            for each in (page, beside):
                await each.shows(session, "working")
            gate.open()
            for each in (page, beside):
                await each.shows(session, "idle")
            await mine.ask("DELETE", f"?client_id={client_id(1)}")
            await page.until(lambda page: not page.workspaces)
            assert page.sessions == {}
        async with second.page() as later:
            assert later.workspaces == {}


@pytest.mark.real_clock
async def test_a_new_page_begins_with_the_rows_of_all_nodes_and_each_only_once(tmp_path):
    async with open_two_nodes(new_database(), tmp_path) as (first, second):
        mine = await first.create(project(tmp_path))
        session = await mine.session("there")
        async with second.page() as page:
            assert page.sessions.keys() == {session}
            async with first.page() as own:
                assert own.sessions.keys() == {session}
        query = f"workspace={mine.id}&client_id={client_id(1)}"
        async with second.page(query) as page:  # forwarded: the owner tells of all nodes, too
            theirs = await second.create(project(tmp_path, "other"), client_id(2))
            await page.until(lambda page: page.workspaces.keys() == {mine.id, theirs.id})


@pytest.mark.real_clock
async def test_rows_move_with_their_workspace_and_go_with_their_node(tmp_path):
    url = new_database()
    async with open_node_server(url, tmp_path) as first, first.page() as page:
        async with open_node_server(url, tmp_path) as second:
            place = await second.create(project(tmp_path))
            session = await place.session("moves")
            await page.until(lambda page: session in page.sessions)
        await page.until(lambda page: not page.workspaces)
        assert (await first.at(place).ask("GET", "/sessions")).status == 200  # opened here
        await page.until(lambda page: session in page.sessions)


@pytest.mark.real_clock
async def test_a_node_that_is_silent_and_gone_from_the_table_is_not_shown(tmp_path):
    url = new_database()
    async with open_two_nodes(url, tmp_path) as (first, second):
        place = await second.create(project(tmp_path))
        async with first.page() as page:
            await page.until(lambda page: place.id in page.workspaces)
            with connect(url) as database:
                moved = "UPDATE nodes SET address = '' WHERE id = %s"
                database.execute(moved, (second.address,))
            await page.until(lambda page: not page.workspaces)


@pytest.mark.real_clock
async def test_search_and_usage_cover_all_nodes(tmp_path):
    turns = WrittenTurns({"hello": [Say("a needle in here")]})
    async with open_two_nodes(new_database(), tmp_path, turns=turns) as (first, second):
        async with AsyncExitStack() as attached:
            for number, node in enumerate((first, second), 1):
                place = await node.create(project(tmp_path, f"p{number}"), client_id(number))
                session = await place.session(f"needle {number}")
                query = f"workspace={place.id}&client_id={client_id(number)}"
                page = await attached.enter_async_context(node.page(query))
                await place.submit(session, "hello", f"r{number}")
                await page.until(ended)
            await found_from(first, second)


async def found_from(*nodes):
    for node in nodes:
        hits = (await node.ask("GET", "/v1/search?q=needle")).json()
        assert sorted(hit["title"] for hit in hits) == ["needle 1"] * 2 + ["needle 2"] * 2
        assert len((await node.ask("GET", "/v1/search?q=needle&limit=3")).json()) == 3
        days = (await node.ask("GET", "/v1/usage?days=2")).json()
        assert len(days) == 2
        assert sum(day["runs"] for day in days) == 2


def ended(page):
    return any(name == "run" and d["state"] == "completed" for name, _, d in page.seen)


@pytest.mark.real_clock
async def test_without_a_reader_no_node_follows_another(tmp_path):
    async with open_two_nodes(new_database(), tmp_path) as (first, second):
        async with second.page():
            pass
        with trio.fail_after(LIMIT):  # the follower's stream ends with its last reader
            while (await first.scrape()).value("streams"):
                await trio.lowlevel.checkpoint()
        before = (await first.scrape()).get(
            "http_requests_total", method="GET", route="/v1/events", status="200"
        )
        assert before == 1


# ── The table ───────────────────────────────────────────────────────────────────────────────────

FIXED = Roster(directory="/", version="1", right="admin")


def place(name):
    return RosterWorkspace(id=WorkspaceId(name), path=f"/{name}", name=name)


def row(name, title="", where="w"):
    return RosterSession(
        id=SessionId(name),
        workspace_id=WorkspaceId(where),
        title=title,
        group=SessionGroup.IDLE,
        cost=0.0,
        tokens=0,
        model=None,
        queue=0,
        run=None,
        updated_at=1,
        message_count=0,
    )


class Mirror:
    """A reader that keeps what it was told, and is compared with the table."""

    def __init__(self, table):
        self.table, self.seen, self.workspaces, self.sessions = table, 0, {}, {}

    def read(self):
        data = self.table.changes.since(self.seen)
        self.seen = self.table.changes.version
        assert data is not None
        for name, _, told in map(parsed, data.split(b"\n\n")[:-1]):
            rows = self.workspaces if name == "roster_workspace" else self.sessions
            key = told["payload"]["id"]
            if told["type"] == "updated":
                rows[key] = told["payload"]
                continue
            rows.pop(key, None)
            if name == "roster_workspace":
                for each in [s for s, d in self.sessions.items() if d["workspace_id"] == key]:
                    del self.sessions[each]

    def same(self):
        self.read()
        shown = {row.id: row.title for row in self.table.rows()}
        assert {key: row["title"] for key, row in self.sessions.items()} == shown
        assert self.workspaces.keys() == {each.id for each in self.table.workspaces()}


def test_a_workspace_that_moves_is_shown_as_the_last_source_tells_it_whatever_comes_first():
    table = RosterTable()
    mirror = Mirror(table)
    table.put_all("a", (place("w"),), (row("s", "old"), row("t", "old")))
    mirror.same()
    table.put_workspace("b", place("w"))
    mirror.same()
    assert list(table.rows()) == []
    table.put_sessions("b", place("w").id, (row("s", "new"),))
    table.put_sessions("a", place("w").id, (row("s", "stale"),), {"s"})
    mirror.same()
    assert [each.title for each in table.rows()] == ["new"]
    table.drop_workspace("a", place("w").id)
    mirror.same()
    assert [each.title for each in table.rows()] == ["new"]
    table.put_all("b", (), ())
    mirror.same()
    assert (table.workspaces(), list(table.rows())) == ((), [])


def test_a_workspace_that_the_last_source_drops_is_shown_as_another_still_tells_it():
    table = RosterTable()
    mirror = Mirror(table)
    table.put_all(HERE, (place("w"),), (row("s", "here"),))
    table.put_all("b", (place("w"),), (row("s", "there"), row("t", "there")))
    mirror.same()
    table.drop_workspace("b", place("w").id)
    mirror.same()
    assert [(each.id, each.title) for each in table.rows()] == [("s", "here")]


def test_rows_of_a_workspace_that_a_source_does_not_have_are_not_shown():
    table = RosterTable()
    table.put_sessions("a", place("w").id, (row("s"),))
    table.drop_workspace("a", place("w").id)
    assert table.changes.version == 0
    assert table.roster(FIXED) == FIXED


@pytest.mark.parametrize("seed", range(40))
def test_a_reader_that_reads_now_and_then_has_what_the_table_shows(seed):
    random, table = Random(seed), RosterTable()
    mirror = Mirror(table)
    for number in range(60):
        source, where = random.choice(["", "a", "b"]), random.choice("vw")
        rows = [row(f"{where}{n}", f"{source}{number}", where) for n in random.sample(range(4), 2)]
        where_id, wanted = WorkspaceId(where), {each.id for each in rows}
        match random.randrange(5):
            case 0:
                table.put_workspace(source, place(where))
            case 1:
                table.drop_workspace(source, where_id)
            case 2:
                table.put_sessions(source, where_id, rows)
            case 3:
                table.put_sessions(source, where_id, rows[:1], wanted)
            case 4:
                table.put_all(source, (place(where),), rows)
        mirror.same()
