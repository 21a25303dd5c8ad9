"""Time and identity: the system's in production, counted in tests."""

import uuid
from datetime import UTC, datetime

import pytest
import trio

from crush_trio.clock import Clock, CountingIds, IdSource, RandomIds, SystemClock, TrioClock


async def test_the_system_clock_stamps_whole_seconds_of_the_wall_clock():
    before = datetime.now(UTC).timestamp()
    stamp = SystemClock().unix()
    assert type(stamp) is int
    assert int(before) <= stamp <= datetime.now(UTC).timestamp()


async def test_virtual_time_moves_the_system_clock_s_durations_but_not_its_stamps():
    clock = SystemClock()
    began, stamp = clock.monotonic(), clock.unix()
    await trio.sleep(3600)
    assert clock.monotonic() - began == 3600
    assert clock.unix() - stamp < 60


async def test_virtual_time_moves_both_times_of_the_trio_clock():
    clock = TrioClock()
    began, stamp = clock.monotonic(), clock.unix()
    await trio.sleep(90)
    assert clock.monotonic() - began == 90
    assert clock.unix() - stamp == 90


async def test_the_trio_clock_counts_whole_seconds_from_its_epoch():
    clock = TrioClock(epoch=1000)
    started = trio.current_time()
    await trio.sleep(2.75)
    assert type(clock.unix()) is int
    assert clock.unix() == 1000 + int(started + 2.75)


def test_the_trio_clock_begins_at_a_date_that_is_easy_to_recognise():
    assert datetime.fromtimestamp(TrioClock().epoch, UTC) == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("clock", [SystemClock(), TrioClock()], ids=["system", "trio"])
def test_durations_exist_only_where_trio_runs(clock):
    with pytest.raises(RuntimeError):
        clock.monotonic()


def test_random_ids_are_version_4_uuids_in_canonical_form():
    ids = RandomIds()
    names = [ids.new() for _ in range(100)]
    assert len(set(names)) == 100
    assert all(str(uuid.UUID(name)) == name and uuid.UUID(name).version == 4 for name in names)


def test_counting_ids_give_the_same_names_in_every_replay():
    assert [CountingIds("run").new() for _ in range(2)] == ["run-1", "run-1"]
    ids = CountingIds()
    assert [ids.new(), ids.new(), ids.new()] == ["id-1", "id-2", "id-3"]


def test_two_sources_count_apart():
    one, other = CountingIds("a"), CountingIds("a")
    one.new()
    assert other.new() == "a-1"


@pytest.mark.parametrize(
    ("seam", "implementation"),
    [(Clock, SystemClock), (Clock, TrioClock), (IdSource, RandomIds), (IdSource, CountingIds)],
)
def test_every_implementation_has_what_its_seam_asks_for(seam, implementation):
    asked = {name for name in vars(seam) if not name.startswith("_")}
    assert asked
    assert all(callable(getattr(implementation, name, None)) for name in asked)
