"""Who may write a workspace: two openers, takeover, fencing, and what a killed process leaves."""

import signal
import subprocess
import sys

import pytest
import trio
from outcome import Error, Value, acapture

from crush_trio.store.changes import TextAppended
from crush_trio.store.errors import LeaseLost, StoreFailed, StoreLocked
from crush_trio.store.lease import Lease
from crush_trio.store.postgres.lease import Holder, claim
from crush_trio.store.postgres.opening import has_workspace, keep_lease, open_postgres_store
from crush_trio.wire.ids import SessionId
from tests.store.postgres.server import connect, new_database, shared_database_url
from tests.store.stores import M, S, ids, message, run, session, text

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]

OTHER = Holder(host="elsewhere", pid=1, version="9.8.7", started=86_400)

FIELDS = ("workspace", "node", "epoch", "ttl", "deadline")

HOLD = """
import sys, trio
from pathlib import Path
from crush_trio.store.postgres.opening import open_postgres_store
from tests.store.stores import message, run, session, text

async def main():
    async with open_postgres_store(sys.argv[1], Path(sys.argv[2]), site="test", ttl=1.0) as store:
        await store.commit(session("s"), run("r"), message("m", text("kept")))
        print("open", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def started(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def open_store(directory, url=None, *, ttl=15.0, site="test"):
    return open_postgres_store(url or shared_database_url(), directory, site=site, ttl=ttl)


def taken_over(store):
    """Claim the workspace of *store* for another server, as if its lease had expired."""
    with connect(shared_database_url()) as connection:
        connection.execute(
            "UPDATE leases SET expires_at = clock_timestamp() WHERE workspace = %s",
            (store.workspace.number,),
        )
        return claim(connection, store.workspace.number, "another", OTHER, sent=0.0)


# ── Opening ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_second_opener_in_this_process_is_told_who_has_the_workspace(tmp_path):
    async with open_store(tmp_path) as store:
        await store.commit(session("s"))
        with pytest.raises(StoreLocked, match=r"of site test belongs to process \d+ on "):
            async with open_store(tmp_path):
                pass
        await store.commit(session("t"))  # the first one is not disturbed
    async with open_store(tmp_path) as again:
        assert len(await again.sessions()) == 2
        assert again.lease.epoch == 2


async def test_workspaces_with_the_same_path_at_two_sites_have_nothing_in_common(tmp_path):
    async with open_store(tmp_path) as here, open_store(tmp_path, site="other") as there:
        await here.commit(session("s", title="here"))
        await there.commit(session("s", title="there"), run("r"))
        assert (await here.session(S)).title == "here"
        assert (await there.session(S)).title == "there"
        assert await here.runs() == []


async def test_of_two_openers_at_once_one_wins(tmp_path):
    opened, refused, done = [], [], trio.Event()

    async def opener():
        try:
            async with open_store(tmp_path) as store:
                opened.append(store)
                await done.wait()
        except StoreLocked as error:
            refused.append(error)
            done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(opener)
        nursery.start_soon(opener)
    assert (len(opened), len(refused)) == (1, 1)


async def test_looking_for_a_workspace_creates_none(tmp_path):
    url = new_database()
    assert not await has_workspace(url, tmp_path, "test")
    with connect(url) as connection:
        assert connection.execute("SELECT to_regclass('workspaces')").fetchone() == (None,)
    async with open_store(tmp_path, url):
        pass
    assert await has_workspace(url, tmp_path, "test")
    assert not await has_workspace(url, tmp_path, "elsewhere")


async def test_a_living_process_keeps_its_workspace_and_a_killed_one_leaves_it(tmp_path):
    """Only a renewal tells that the owner lives; without one its lease expires and is claimed."""
    url = new_database()
    with started([sys.executable, "-c", HOLD, url, str(tmp_path)]) as process:
        try:
            line = await trio.to_thread.run_sync(process.stdout.readline)
            assert line == "open\n"
            with pytest.raises(StoreLocked, match=f"process {process.pid} on "):
                async with open_store(tmp_path, url, ttl=1.0):
                    pass
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        async with open_store(tmp_path, url, ttl=1.0) as store:
            assert ids(await store.messages(S)) == ["m"]
            assert [orphan.run_id for orphan in await store.orphans()] == ["r"]
            assert store.lease.epoch == 2


# ── Fencing ─────────────────────────────────────────────────────────────────────────────────────


async def test_after_a_takeover_the_old_owner_writes_nothing_more(tmp_path):
    async with open_store(tmp_path) as store:
        await store.commit(session("s"), message("m", text("a")))
        taken_over(store)
        for _ in range(2):  # the first is refused by the database, the second at once
            with pytest.raises(LeaseLost, match="taken the workspace over"):
                await store.commit(TextAppended(message_id=M, index=0, text="b", at=100))
        store.post(session("t"))
        assert (await store.message(M)).message.parts == (text("a"),)  # reading goes on
        assert ids(await store.sessions()) == ["s"]
        assert "taken the workspace over" in store.degraded


async def test_the_works_of_other_workspaces_in_the_same_group_go_through(tmp_path):
    async with open_store(tmp_path / "a") as ours, open_store(tmp_path / "b") as theirs:
        await ours.commit(session("s"))
        await theirs.commit(session("s"))
        taken_over(ours)
        results = {}

        async def write(store, name):
            results[store is ours, name] = await acapture(store.commit, session(name))

        async with trio.open_nursery() as nursery:
            for name in ("t", "u", "v"):
                nursery.start_soon(write, ours, name)
                nursery.start_soon(write, theirs, name)
        assert len(await ours.sessions()) == 1
        assert len(await theirs.sessions()) == 4
        for (is_ours, _), result in results.items():
            assert isinstance(result, Error if is_ours else Value)
            assert not is_ours or isinstance(result.error, LeaseLost)
        assert theirs.degraded is None


async def test_the_task_that_renews_a_lease_notices_that_it_was_taken(tmp_path):
    async with open_store(tmp_path, ttl=0.6) as store:
        taken_over(store)
        with trio.fail_after(30):
            await keep_lease(store.database, store.lease, store.health)  # ends when it is lost
        assert "taken the workspace over" in store.degraded
        with pytest.raises(LeaseLost):
            await store.commit(session("s"))


async def test_a_store_whose_lease_has_run_out_refuses_writes_until_it_is_renewed(tmp_path):
    async with open_store(tmp_path) as store:
        deadline = store.lease.deadline
        store.lease.deadline = 0.0
        with pytest.raises(LeaseLost, match="could not be renewed in time"):
            await store.commit(session("s"))
        store.post(session("s"))
        assert "could not be renewed in time" in store.degraded
        assert await store.sessions() == []
        store.lease.deadline = deadline
        await store.commit(session("t"))
        assert ids(await store.sessions()) == ["t"]


async def test_a_lease_is_renewed_while_the_store_is_open(tmp_path):
    class Watched(Lease):
        def renewed(self, sent):
            super().renewed(sent)
            renewals.append(self.deadline)
            if len(renewals) == 3:
                enough.set()

    renewals, enough = [], trio.Event()
    async with open_store(tmp_path, ttl=0.6) as store:
        seen = Watched(**{name: getattr(store.lease, name) for name in FIELDS})
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_lease, store.database, seen, store.health)
                await enough.wait()
                nursery.cancel_scope.cancel()
    assert renewals == sorted(set(renewals))
    assert (seen.epoch, seen.taken) == (1, False)


async def test_leaving_a_store_frees_the_workspace_for_a_program_elsewhere(tmp_path):
    async with open_store(tmp_path) as store:
        store.post(session("s"))
    with connect(shared_database_url()) as connection:
        found = claim(connection, store.workspace.number, "another", OTHER, sent=0.0)
    assert found.epoch == 2
    with connect(shared_database_url()) as connection:
        rows = connection.execute(
            "SELECT id FROM sessions WHERE workspace = %s", (store.workspace.number,)
        ).fetchall()
    assert rows == [("s",)]  # what was posted is stored first


async def test_giving_up_one_store_leaves_the_others_alone(tmp_path):
    async with open_store(tmp_path / "a") as ours, open_store(tmp_path / "b") as theirs:
        late = ours.submit(session("s"))
        ours.abandon()
        with pytest.raises(StoreFailed, match="closed"):
            await ours.commit(session("t"))
        with pytest.raises(StoreFailed, match="closed"):
            await late.wait()
        await theirs.commit(session("s"))
        assert [each.id for each in await theirs.sessions()] == [SessionId("s")]
