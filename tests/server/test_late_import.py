"""Workspaces whose code comes late: when it is imported, by whom, and what becomes of a failure."""

import threading
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field

from crush_trio.backend.settings import Terms, WorkspaceKey, WorkspacePlan
from crush_trio.server.hosting.host import HEAD_START, LateOpener
from crush_trio.wire.ids import WorkspaceId
from tests.backend.hosts import A

PLAN = WorkspacePlan(
    id=WorkspaceId("w"), key=WorkspaceKey("/srv"), path="/srv", terms=Terms(), created_by=A
)


@define(eq=False)
class Making:
    """Stands for the import: says in which thread it happened and when, and what was opened then."""

    failure: Exception | None = None
    threads: list = field(factory=list, init=False)
    times: list = field(factory=list, init=False)
    open_now: list = field(factory=list, init=False)

    def __call__(self):
        self.threads.append(threading.current_thread())
        self.times.append(trio.from_thread.run_sync(trio.current_time))
        if self.failure is not None:
            raise self.failure
        return self._open

    @asynccontextmanager
    async def _open(self, plan):
        self.open_now.append(plan)
        yield "opened"
        self.open_now.remove(plan)


def test_making_an_opener_imports_nothing():
    making = Making()
    LateOpener(making)
    assert making.threads == []


async def test_opening_imports_off_the_main_thread_and_hands_on_what_was_opened():
    making = Making()
    async with LateOpener(making).open(PLAN) as opened:
        assert opened == "opened"
        assert making.open_now == [PLAN]
    assert making.open_now == []
    [thread] = making.threads
    assert thread is not threading.main_thread()


async def test_the_import_ahead_lets_the_first_requests_go_first():
    making, began = Making(), trio.current_time()
    await LateOpener(making).import_ahead()
    assert making.times == [began + HEAD_START]


async def test_a_workspace_does_not_wait_for_the_import_ahead():
    making, began = Making(), trio.current_time()
    async with LateOpener(making).open(PLAN):
        assert making.times == [began]


async def test_code_that_cannot_be_imported_ends_whatever_the_import_runs_beside():
    broken = LateOpener(Making(ImportError("no such module")))
    with pytest.RaisesGroup(pytest.RaisesExc(ImportError, match="no such module")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broken.import_ahead)
            await trio.sleep_forever()
