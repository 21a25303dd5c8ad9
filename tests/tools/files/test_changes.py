"""Between a look at a file and its change may lie minutes, other sessions, and a cancel."""

import threading

import pytest
import trio
import trio.testing

from crush_trio.tools.base import ToolError
from crush_trio.tools.files import changes as changing
from crush_trio.tools.files import disk
from crush_trio.tools.files.changes import EDIT_LIMIT
from crush_trio.tools.files.text import BOM
from tests.tools.file_bench import Person, open_bench

pytestmark = pytest.mark.real_clock


# ── While somebody thinks ───────────────────────────────────────────────────────────────────────


async def test_a_file_changed_while_a_person_thought_is_not_overwritten(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a", "old\n")

        async def another_editor():
            path.write_text("theirs\n")

        bench.person.meanwhile = another_editor
        with pytest.raises(ToolError, match="changed by another program"):
            await bench.edit("a", "old", "new")
        assert bench.get("a") == "theirs\n"
        assert bench.leftovers() == []


async def test_a_file_created_while_a_person_thought_is_not_overwritten(tmp_path):
    async with open_bench(tmp_path) as bench:

        async def another_editor():
            bench.put("a", "theirs\n")

        bench.person.meanwhile = another_editor
        with pytest.raises(ToolError, match="changed by another program"):
            await bench.write("a", "ours\n")
        assert bench.get("a") == "theirs\n"


async def test_after_such_a_conflict_the_history_does_not_lose_what_others_wrote(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a", "old\n")

        async def another_editor():
            path.write_text("theirs\n")

        with pytest.raises(ToolError):
            await bench.edit("a", "old", "new", person=Person(meanwhile=another_editor))
        await bench.view("a")
        await bench.edit("a", "theirs", "both")
        assert await bench.versions(path) == [(0, "old\n"), (1, "theirs\n"), (2, "both\n")]


async def test_of_two_sessions_that_change_one_file_at_once_one_is_told(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a", "one\ntwo\n")
        await bench.put_seen("a", "one\ntwo\n", session_id="other")
        both_asked, asked, outcomes = trio.Event(), [], []

        async def think():
            asked.append(None)
            if len(asked) == 2:
                both_asked.set()
            await both_asked.wait()

        async def change(session_id, old, new):
            try:
                await bench.edit(
                    "a", old, new, session_id=session_id, person=Person(meanwhile=think)
                )
                outcomes.append("edited")
            except ToolError as exc:
                outcomes.append(str(exc))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change, "s", "one", "1")
            nursery.start_soon(change, "other", "two", "2")
        assert bench.get("a") in {"1\ntwo\n", "one\n2\n"}
        refused = [outcome for outcome in outcomes if outcome != "edited"]
        assert len(outcomes) == 2
        assert len(refused) == 1
        assert "changed by another program" in refused[0]


async def test_files_are_replaced_one_at_a_time(tmp_path, monkeypatch):
    inside, most, real = [], [], disk.replace_file

    def watched(*arguments):
        inside.append(None)
        most.append(len(inside))
        try:
            return real(*arguments)
        finally:
            inside.pop()

    monkeypatch.setattr(changing, "replace_file", watched)
    async with open_bench(tmp_path) as bench:
        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(bench.write, f"file {n}", "content")
    assert most == [1] * 8


# ── Cancel ──────────────────────────────────────────────────────────────────────────────────────


async def cancel_in(bench, monkeypatch, *, before_replacing):
    """Edit a file and cancel while a thread is about to replace it, or just has."""
    scope, reached, go_on = trio.CancelScope(), trio.Event(), threading.Event()
    real = disk.replace_file

    def held(*arguments):
        result = None if before_replacing else real(*arguments)
        trio.from_thread.run_sync(reached.set)
        go_on.wait()
        return real(*arguments) if before_replacing else result

    monkeypatch.setattr(changing, "replace_file", held)

    async def edit():
        with scope:
            await bench.edit("a", "old", "new")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(edit)
        await reached.wait()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    return scope.cancelled_caught


@pytest.mark.parametrize("before_replacing", [True, False])
async def test_a_cancel_during_the_write_comes_after_it_and_its_record(
    tmp_path, monkeypatch, before_replacing
):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a", "old\n")

        async def diagnose(_path):
            await trio.lowlevel.checkpoint()
            pytest.fail("a cancelled call went on")

        bench.changes.diagnose = diagnose
        assert await cancel_in(bench, monkeypatch, before_replacing=before_replacing)
        assert bench.get("a") == "new\n"
        assert await bench.versions(path) == [(0, "old\n"), (1, "new\n")]
        assert [version for _, version, _ in bench.announced()] == [0, 1]
        assert bench.leftovers() == []


async def test_a_cancel_before_the_write_leaves_the_file_as_it_was(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a", "old\n")
        with trio.CancelScope() as scope:

            async def stop():
                scope.cancel()

            await bench.edit("a", "old", "new", person=Person(meanwhile=stop))
        assert scope.cancelled_caught
        assert bench.get("a") == "old\n"
        assert [content for _, content in await bench.versions(path)] in ([], ["old\n"])


async def test_a_cancel_while_another_writes_leaves_the_file_as_it_was(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a", "old\n")
        asked = trio.Event()

        async def agree():
            asked.set()

        bench.person.meanwhile = agree
        async with bench.changes._writer:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(bench.edit, "a", "old", "new")
                    await asked.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    assert bench.changes._writer.statistics().tasks_waiting == 1
                    scope.cancel()
        assert scope.cancelled_caught
        assert bench.get("a") == "old\n"


# ── What can be changed ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("content", [b"gr\xfc\x01", b"zero\0byte", "zero\0".encode("utf-16")])
async def test_what_is_not_text_is_not_changed(tmp_path, content):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a", content)
        for change in (bench.edit("a", "e", "x"), bench.write("a", "x")):
            with pytest.raises(ToolError, match="binary file"):
                await change
        assert (bench.root / "a").read_bytes() == content


@pytest.mark.parametrize(
    ("encoding", "mark"), [("utf-16-le", BOM), ("utf-16-be", BOM), ("cp1252", "")]
)
async def test_a_changed_file_keeps_its_encoding(tmp_path, encoding, mark):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a", f"{mark}grüße\r\n€x\r\n".encode(encoding))
        shown = (await bench.view("a")).content
        assert "     1|grüße\n     2|€x" in shown
        assert "(The encoding of the file is " in shown
        await bench.edit("a", "grüße\n", "größe\nneu\n")
        assert path.read_bytes() == f"{mark}größe\r\nneu\r\n€x\r\n".encode(encoding)
        await bench.write("a", "älter\n")
        assert path.read_bytes() == f"{mark}älter\r\n".encode(encoding)
        assert [content for _, content in await bench.versions(path)][-1] == f"{mark}älter\r\n"


async def test_a_character_that_the_encoding_lacks_is_refused(tmp_path):
    async with open_bench(tmp_path) as bench:
        path = await bench.put_seen("a", b"gr\xfc\xdfe\n")
        with pytest.raises(ToolError, match="is Windows-1252 text, which cannot hold '→'"):
            await bench.edit("a", "grüße", "→")
        assert path.read_bytes() == b"gr\xfc\xdfe\n"


async def test_a_file_too_large_to_be_shown_whole_is_not_changed(tmp_path):
    async with open_bench(tmp_path) as bench:
        await bench.put_seen("a", b"x" * (EDIT_LIMIT + 1))
        with pytest.raises(ToolError, match="too large"):
            await bench.write("a", "small")
        with pytest.raises(ToolError, match="larger than"):
            await bench.write("b", "x" * (EDIT_LIMIT + 1))
        assert not (bench.root / "b").exists()


@pytest.mark.parametrize("file_path", ["a\0b", "loop"])
async def test_a_path_that_leads_nowhere_is_told_to_the_model(tmp_path, file_path):
    async with open_bench(tmp_path) as bench:
        (bench.root / "loop").symlink_to("loop")
        for attempt in (bench.view(file_path), bench.write(file_path, "x")):
            with pytest.raises(ToolError, match=r"not a usable path|cannot"):
                await attempt


async def test_an_empty_path_is_a_missing_one(tmp_path):
    async with open_bench(tmp_path) as bench:
        with pytest.raises(ToolError, match="file_path is required"):
            await bench.view("")
