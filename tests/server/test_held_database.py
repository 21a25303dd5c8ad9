"""A database that another program holds, as clients with prompts meet it."""

import sqlite3
from contextlib import closing

import pytest
import trio

from crush_trio.errors import AcceptanceNotStored
from crush_trio.limits import Limits
from crush_trio.store.sqlite.store import CATCH_UP_SECONDS
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import WhenBusy
from tests.server.test_data_directory import joined, open_served

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


async def test_looking_for_an_earlier_run_does_not_prolong_the_refusal_of_a_prompt(tmp_path):
    """A prompt is answered within the limit of acceptance, whatever it has to be compared with."""
    (project := tmp_path / "project").mkdir()
    times = {}
    async with (
        open_served(tmp_path, WrittenTurns()) as server,
        joined(server, project) as workspace,
    ):
        sessions = [(await workspace.sessions.create("s")).id for _ in WhenBusy]

        async def refused(policy, session):
            began = trio.current_time()
            with pytest.raises(AcceptanceNotStored, match="did not answer in time"):
                await workspace.submit(
                    "hi", session=session, run_id=RunId(policy.value), when_busy=policy
                )
            times[policy] = trio.current_time() - began

        database = project / ".crush" / "crush-trio.db"
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with trio.open_nursery() as nursery:
                for policy, session in zip(WhenBusy, sessions, strict=True):
                    nursery.start_soon(refused, policy, session)
            other.execute("ROLLBACK")
    assert max(times.values()) < Limits().accept + CATCH_UP_SECONDS * 0.75, times
