"""A store that fails while a run is recorded: the run ends as usual, and its capsule says what is lost."""

import pytest
import trio
import trio.testing

from crush_trio.store.changes import RunRecorded
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing import Say
from crush_trio.testing.capsule import NotReplayable, read_capsule, replay
from tests.testing.capsule.played import open_agent_server, run_recorded


def recorded_without(monkeypatch, lost):
    """Record a run whose piece number *lost* is not stored; return its state and its capsule."""
    post = MemoryStore.post

    def failing(store, *changes):
        if not any(isinstance(each, RunRecorded) and each.n == lost for each in changes):
            post(store, *changes)

    monkeypatch.setattr(MemoryStore, "post", failing)

    async def play():
        async with open_agent_server([[Say("done")]]) as (_server, place):
            data = await run_recorded(place, await place.create_session(), "go", "r1")
            return (await place.request("GET", "/runs/r1")).json()["state"], data

    return trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_capsule_says_that_a_piece_of_it_is_lost(monkeypatch):
    state, data = recorded_without(monkeypatch, 1)
    end = read_capsule(data).end
    assert (state, end["complete"], end["lost"]) == ("completed", False, 1)
    with pytest.raises(NotReplayable, match="1 pieces of its recording could not be stored"):
        replay(data)


def test_a_recording_without_its_beginning_is_none(monkeypatch):
    state, data = recorded_without(monkeypatch, 0)
    assert state == "completed"
    assert b"not_recorded" in data
    assert b"could not be stored" in data
