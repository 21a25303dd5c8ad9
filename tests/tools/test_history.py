"""Read marks and versions of files: stored first, published then, by absolute path."""

from functools import partial

import pytest
import trio

from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.explore.checkpoints import Call, CheckpointFaults, Fault, checkpoints_of
from crush_trio.tools.base import ToolError
from crush_trio.tools.workbench import History
from tests.store.stores import S, session
from tests.tools.file_bench import make_bench


async def open_history(tmp_path):
    store = MemoryStore()
    await store.commit(session("s"), session("other"))
    return make_bench(tmp_path, store)


async def test_a_file_that_was_never_read_is_not_fresh(tmp_path):
    bench = await open_history(tmp_path)
    with pytest.raises(ToolError, match="has not been read"):
        await bench.history.check_fresh(S, tmp_path / "a", 5)


@pytest.mark.parametrize("modified", [99, 100])
async def test_a_file_read_in_the_second_of_its_change_or_later_is_fresh(tmp_path, modified):
    bench = await open_history(tmp_path)
    await bench.history.record_read(S, tmp_path / "a", 100)
    await bench.history.check_fresh(S, tmp_path / "a", modified)


async def test_a_file_changed_in_a_later_second_is_not_fresh(tmp_path):
    bench = await open_history(tmp_path)
    await bench.history.record_read(S, tmp_path / "a", 100)
    with pytest.raises(ToolError, match="changed since"):
        await bench.history.check_fresh(S, tmp_path / "a", 101)


async def test_what_one_session_read_another_has_not(tmp_path):
    bench = await open_history(tmp_path)
    await bench.history.record_read("other", tmp_path / "a", 100)
    with pytest.raises(ToolError, match="has not been read"):
        await bench.history.check_fresh(S, tmp_path / "a", 5)


async def test_the_content_before_is_kept_once(tmp_path):
    bench = await open_history(tmp_path)
    path = tmp_path / "a"
    for content in ("old", "old", "theirs"):
        await bench.history.keep_before(S, path, content)
    assert await bench.versions(path) == [(0, "old"), (1, "theirs")]
    assert bench.announced() == [("created", 0, "old"), ("created", 1, "theirs")]


async def test_the_content_after_is_always_kept_and_marks_the_file_as_read(tmp_path):
    bench = await open_history(tmp_path)
    path = tmp_path / "a"
    await bench.history.keep_after(S, path, "new", 100)
    await bench.history.keep_after(S, path, "new", 101)
    assert await bench.versions(path) == [(0, "new"), (1, "new")]
    assert await bench.bench.store.last_read(S, str(path)) == 101


async def test_a_cancel_never_comes_between_storing_a_version_and_publishing_it(tmp_path):
    async def change(bench):
        await bench.history.keep_before(S, tmp_path / "a", "old")
        await bench.history.keep_after(S, tmp_path / "a", "new", 100)

    undisturbed = partial(change, await open_history(tmp_path))
    for at in range(await checkpoints_of(undisturbed)):
        bench = await open_history(tmp_path)
        with trio.CancelScope() as scope:
            await CheckpointFaults([Fault(at, Call(scope.cancel))]).drive(change(bench))
        stored = [("created", *version) for version in await bench.versions(tmp_path / "a")]
        assert bench.announced() == stored


async def test_a_store_that_does_not_answer_fails_the_run(tmp_path):
    class Deaf(MemoryStore):
        async def add_file(self, *_):
            await trio.sleep_forever()

    store = Deaf()
    await store.commit(session("s"))
    with pytest.raises(trio.TooSlowError):
        await History(make_bench(tmp_path, store).bench).keep_before(S, tmp_path / "a", "old")
