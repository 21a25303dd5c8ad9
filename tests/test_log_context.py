"""Whose a record is: what it says itself, or what held where the work was started."""

import logging

import pytest
import trio

from crush_trio.log_context import logged_for, owner_field, owner_of


@pytest.fixture
def record():
    return logging.makeLogRecord({"msg": "x"})


def test_a_record_belongs_to_nobody_by_itself(record):
    assert owner_of(record) is None
    assert owner_field(record) == {}


def test_a_record_belongs_to_the_workspace_whose_work_is_done(record):
    with logged_for("w1"):
        with logged_for("w2"):
            assert owner_of(record) == "w2"
        assert owner_field(record) == {"workspace_id": "w1"}
    assert owner_of(record) is None


def test_a_record_that_names_a_workspace_is_believed():
    record = logging.makeLogRecord({"msg": "x", "workspace_id": "w9"})
    with logged_for("w1"):
        assert owner_of(record) == "w9"


@pytest.mark.real_clock
async def test_tasks_and_threads_inherit_whose_work_they_are(record):
    owners = []

    async def work():
        await trio.lowlevel.checkpoint()
        owners.append(owner_of(record))
        owners.append(await trio.to_thread.run_sync(owner_of, record))

    async with trio.open_nursery() as nursery:
        with logged_for("w1"):
            nursery.start_soon(work)
        assert owner_of(record) is None
    assert owners == ["w1", "w1"]
