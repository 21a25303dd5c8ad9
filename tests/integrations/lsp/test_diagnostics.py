"""After a look at a file or a change of it, a model hears what servers think, and does not wait long (H7)."""

import pytest
import trio

from crush_trio.integrations.lsp.documents import FIRST_WAIT
from tests.config.homes import Home
from tests.integrations.lsp_bench import Programs
from tests.integrations.lsp_program import Toy
from tests.integrations.lsp_workspace import TOY, lsp, open_place

# Files are read in threads, and the virtual clock does not see those.
pytestmark = [pytest.mark.real_clock, pytest.mark.item("H7")]


MUTE = TOY | {"args": ["--mute"]}


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


async def test_a_change_brings_what_servers_say_about_it_and_about_the_rest(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        await place.servers.changed(place.put("other.toy", "WARN"))
        said = await place.said("write", file_path="a.toy", content="fine\nBAD WARN\n")
        _, *blocks = said.split("\n\n")
        assert blocks == [
            "Diagnostics of this file:\n"
            "error: a.toy:2:1: BAD is bad (toy)\n"
            "warning: a.toy:2:5: WARN is bad (toy)",
            "Diagnostics of other files:\nwarning: other.toy:1:1: WARN is bad (toy)",
            "In all: 1 error, 2 warnings.",
        ]
        methods = [method for method, _ in place.programs.toy.updates]
        assert methods[-3:] == [
            "textDocument/didOpen",
            "textDocument/didSave",
            "workspace/didChangeWatchedFiles",
        ]


async def test_what_has_been_repaired_is_no_longer_said(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        assert "BAD is bad" in await place.said("write", file_path="a.toy", content="BAD\n")
        said = await place.said("write", file_path="a.toy", content="fine\n")
        assert said == f"Wrote {place.root / 'a.toy'} (+1 -1 lines)."


async def test_a_look_at_a_file_shows_it_to_servers_once(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        place.put("a.toy", "BAD\n")
        for _ in range(2):
            assert "error: a.toy:1:1" in await place.said("view", file_path="a.toy")
        methods = [method for method, _ in place.programs.toy.updates]
        assert methods.count("textDocument/didOpen") == 1
        assert "textDocument/didSave" not in methods
        place.put("a.toy", "BAD\nBAD\n")
        assert "error: a.toy:2:1" in await place.said("view", file_path="a.toy")


async def test_columns_are_told_as_the_server_counts_them_and_the_mark_is_not_text(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        said = await place.servers.changed(place.put("a.toy", "\ufeff😀 BAD\n"))
        assert "a.toy:1:4:" in said
        [shown] = [
            params["textDocument"]["text"]
            for method, params in place.programs.toy.updates
            if method == "textDocument/didOpen"
        ]
        assert shown == "😀 BAD\n"


async def test_what_is_no_text_is_not_shown(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        assert await place.servers.changed(place.put("a.toy", b"\xff\xfe BAD")) == ""
        assert await place.servers.changed(place.root / "missing.toy") == ""
        assert place.programs.toys == []


async def test_two_servers_for_one_file_are_asked_at_once(home):
    async with open_place(home, lsp(one=TOY, two=TOY, mute=MUTE, silent=MUTE, still=MUTE)) as place:
        before = trio.current_time()
        said = await place.servers.changed(place.put("a.toy", "BAD"))
        assert said.endswith("In all: 1 error.")
        assert len(place.programs.toys) == 5
        assert FIRST_WAIT <= trio.current_time() - before < 3 * FIRST_WAIT


async def test_a_view_waits_less_than_a_change_for_a_server_that_says_nothing(home):
    async with open_place(home, lsp(toy=MUTE)) as place:
        file, times = place.put("a.toy", "BAD"), []
        for wait in (place.servers.viewed, place.servers.changed):
            before = trio.current_time()
            assert await wait(file) == ""
            times.append(trio.current_time() - before)
        assert 0.3 <= times[0] < 0.9
        assert 1.0 <= times[1] < 4.0


async def test_one_that_takes_its_time_to_start_is_not_waited_for_and_starts_all_the_same(home):
    gate = trio.Event()

    async def slow(toy, far):
        message = await far.next()
        await gate.wait()
        [answer] = toy.handle(message)
        await far.answer(message, answer["result"])
        await trio.sleep_forever()

    async with open_place(home, lsp(toy=TOY), programs=Programs(serve=slow)) as place:
        file = place.put("a.toy", "BAD")
        with trio.fail_after(1):
            assert await place.servers.viewed(file) == ""
        gate.set()
        with trio.fail_after(1):
            await place.servers.named("toy").get_ready()


async def test_a_crash_while_it_is_asked_is_no_error_of_the_call(home):
    async with open_place(home, lsp(toy=TOY | {"args": ["--crash-on-open"]})) as place:
        said = await place.said("write", file_path="a.toy", content="BAD\n")
        assert said == f"Wrote {place.root / 'a.toy'} (+1 -0 lines)."
        assert place.servers.states()["toy"].error == "it has ended"


async def test_a_server_that_counts_otherwise_is_understood(home):
    class Utf8(Toy):
        def on_initialize(self, params):
            return super().on_initialize(params) | {"capabilities": {"positionEncoding": "utf-8"}}

    async with open_place(home, lsp(toy=TOY), programs=Programs(make=Utf8)) as place:
        session = await place.servers.named("toy").get_ready()
        assert session.encoding == "utf-8"
        assert not session.documents.syncs
