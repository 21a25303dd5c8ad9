"""After a look at a file or a change of it, a model hears what servers think, and does not wait long (H7)."""

import pytest
import trio

from crush_trio.integrations.lsp import diagnostics as lsp_diagnostics
from crush_trio.integrations.lsp.diagnostics import after_change
from crush_trio.integrations.lsp.documents import FIRST_WAIT
from crush_trio.integrations.lsp.known_servers import count_files
from crush_trio.integrations.lsp.session import pace_of
from crush_trio.tools.base import ToolError
from tests.config.homes import Home
from tests.integrations.lsp_bench import Programs, serve_toy
from tests.integrations.lsp_program import Toy
from tests.integrations.lsp_workspace import TOY, lsp, open_place

# Files are read in threads, and the virtual clock does not see those.
pytestmark = [pytest.mark.real_clock, pytest.mark.item("H7")]


MUTE = TOY | {"args": ["--mute"]}


SILENT = (
    "Not complete, ask lsp_diagnostics later:\n"
    "toy has reported nothing yet and may still be loading."
)


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
        assert await place.servers.changed(place.put("a.toy", b"\0 BAD")) == ""
        assert await place.servers.changed(place.root / "missing.toy") == ""
        assert place.programs.toys == []


async def test_two_servers_for_one_file_are_asked_at_once(home):
    async with open_place(home, lsp(one=TOY, two=TOY, mute=MUTE, silent=MUTE, still=MUTE)) as place:
        before = trio.current_time()
        said = await place.servers.changed(place.put("a.toy", "BAD"))
        assert "In all: 1 error." in said
        assert len(place.programs.toys) == 5
        assert FIRST_WAIT <= trio.current_time() - before < 3 * FIRST_WAIT


async def test_a_view_waits_less_than_a_change_for_a_server_that_says_nothing(home):
    async with open_place(home, lsp(toy=MUTE)) as place:
        file, times = place.put("a.toy", "BAD"), []
        for wait, said in ((place.servers.viewed, ""), (place.servers.changed, SILENT)):
            before = trio.current_time()
            assert await wait(file) == said
            times.append(trio.current_time() - before)
        assert 0.3 <= times[0] < 0.9
        assert 1.0 <= times[1] < 4.0


async def test_one_that_takes_its_time_to_start_is_named_not_waited_for_and_shown_the_file_later(
    home,
):
    gate = trio.Event()

    async def slow(toy, far):
        message = await far.next()
        await gate.wait()
        for each in toy.handle(message):
            await far.say(**{key: value for key, value in each.items() if key != "jsonrpc"})
        await serve_toy(toy, far)

    async with open_place(home, lsp(toy=TOY), programs=Programs(serve=slow)) as place:
        before = trio.current_time()
        assert await place.servers.viewed(place.put("a.toy", "BAD")) == ""
        said = await place.said("write", file_path="b.toy", content="BAD\n")
        assert trio.current_time() - before < 3  # and not CHANGED_LIMIT
        assert said.endswith("ask lsp_diagnostics later:\ntoy is still starting.")
        gate.set()
        documents = (await place.servers.named("toy").get_ready()).documents
        with trio.fail_after(5):
            await documents.wait_for_update(1)
        assert sorted(documents.diagnostics()) == [
            (place.root / name).as_uri() for name in ("a.toy", "b.toy")
        ]


class Loading(Toy):
    """Loads the project until it is let; what it says until then is not all."""

    loaded = False

    def on_initialized(self, _params):
        return [self.progress("begin", title="Indexing", message="3/9")]

    def progress(self, kind, **more):
        params = {"token": 7, "value": {"kind": kind, **more}}
        return {"jsonrpc": "2.0", "method": "$/progress", "params": params}

    def _changed(self, *change):
        said = super()._changed(*change)
        return said if self.loaded else []

    def on_document_symbol(self, params):
        return super().on_document_symbol(params) if self.loaded else []

    def on_did_save(self, params):
        """Is the end of the loading."""
        if "done" not in self.documents[params["textDocument"]["uri"]]:
            return []
        self.loaded = True
        said = [Toy._changed(self, uri, 1, text)[0] for uri, text in self.documents.items()]
        return [self.progress("report", message="9/9"), self.progress("end"), *said]


async def test_a_server_that_loads_is_waited_for_and_named_and_never_taken_for_content(
    home, monkeypatch
):
    monkeypatch.setattr(lsp_diagnostics, "CHANGED_LIMIT", 0.5)
    monkeypatch.setattr(after_change, "__defaults__", (0.5,))
    async with open_place(home, lsp(toy=TOY), programs=Programs(make=Loading)) as place:
        said = await place.said("write", file_path="a.toy", content="BAD\n")
        assert said.endswith(
            "Not complete, ask lsp_diagnostics later:\ntoy is still loading (Indexing: 3/9)."
        )
        said = await place.said("write", file_path="b.toy", content="done BAD\n")
        assert "Not complete" not in said
        assert said.endswith("In all: 2 errors.")


async def test_questions_wait_until_the_project_is_loaded(home, monkeypatch):
    async with open_place(home, lsp(toy=TOY), programs=Programs(make=Loading)) as place:
        place.put("a.toy", "def f\n")
        async with trio.open_nursery() as nursery:

            async def ask():
                assert "function f" in await place.said("lsp_symbols", file_path="a.toy")

            nursery.start_soon(ask)
            await place.programs.news.until(
                lambda: place.programs.toys and len(place.programs.toy.updates) >= 3
            )
            await place.servers.changed(place.put("b.toy", "done\n"))
        monkeypatch.setattr(lsp_diagnostics, "LOADING_LIMIT", 0.1)
        session = place.servers.named("toy").session
        session.documents.receive_progress(
            place.programs.toy.progress("begin", title="More")["params"]
        )
        with pytest.raises(ToolError, match=r"toy is still loading \(More\), ask again later"):
            await place.said("lsp_definition", symbol="done")


class Asked(Toy):
    """Gives diagnostics on request only; the first time it has other work."""

    requests = 0

    def on_initialize(self, params):
        answer = super().on_initialize(params)
        offered = {"identifier": "toy", "interFileDependencies": True}
        return {"capabilities": answer["capabilities"] | {"diagnosticProvider": offered}}

    def handle(self, message):
        if message.get("method") != "textDocument/diagnostic":
            said = super().handle(message)
            return [each for each in said if each.get("method") is None]
        self.requests += 1
        if self.requests == 1:
            error = {"code": -32802, "message": "busy", "data": {"retriggerRequest": True}}
            return [{"jsonrpc": "2.0", "id": message["id"], "error": error}]
        return [{"jsonrpc": "2.0", "id": message["id"], "result": self.report(message["params"])}]

    def report(self, params):
        assert params["identifier"] == "toy"
        uri = params["textDocument"]["uri"]
        text = self.documents[uri]
        if params.get("previousResultId") == text:
            return {"kind": "unchanged", "resultId": text}
        [said] = super()._changed(uri, 1, text)
        return {"kind": "full", "resultId": text, "items": said["params"]["diagnostics"]}


async def test_diagnostics_are_asked_for_where_a_server_offers_that(home):
    async with open_place(home, lsp(toy=TOY), programs=Programs(make=Asked)) as place:
        said = await place.said("write", file_path="a.toy", content="BAD\n")
        assert said.endswith("In all: 1 error.")
        assert place.programs.toy.requests == 2
        assert "1 error" in await place.said("lsp_diagnostics", file_path="a.toy")
        assert "1 error" in await place.said("lsp_diagnostics")
        said = await place.said("write", file_path="a.toy", content="fine\n")
        assert "Diagnostics" not in said
        assert "Not complete" not in said
        session = place.servers.named("toy").session
        heard, asked = session.documents.updates, place.programs.toy.requests
        session.documents.receive_refresh()
        with trio.fail_after(5):
            await session.documents.wait_for_update(heard)
        assert place.programs.toy.requests == asked + 1


@pytest.mark.parametrize(("files", "pace"), [(0, 1), (999, 1), (1000, 2), (2500, 3), (90_000, 4)])
def test_time_limits_grow_with_the_project(files, pace):
    assert pace_of(files) == pace


async def test_the_files_of_a_project_are_counted_as_far_as_it_matters(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        for name in ("a.toy", "b.py", "sub/c.toy", "node_modules/d.toy"):
            place.put(name)
        server = place.servers.named("toy")
        assert await place.servers.count_files(server.spec) == 2
        counted = await trio.to_thread.run_sync(count_files, place.root, server.spec, 1)
        assert counted == 1


async def test_a_crash_while_it_is_asked_is_no_error_of_the_call(home):
    async with open_place(home, lsp(toy=TOY | {"args": ["--crash-on-open"]})) as place:
        said = await place.said("write", file_path="a.toy", content="BAD\n")
        assert said.startswith(f"Wrote {place.root / 'a.toy'} (+1 -0 lines).")
        assert said.endswith("toy is not available (it has ended).")
        assert place.servers.states()["toy"].error == "it has ended"


async def test_a_server_that_counts_otherwise_is_understood(home):
    class Utf8(Toy):
        def on_initialize(self, params):
            return super().on_initialize(params) | {"capabilities": {"positionEncoding": "utf-8"}}

    async with open_place(home, lsp(toy=TOY), programs=Programs(make=Utf8)) as place:
        session = await place.servers.named("toy").get_ready()
        assert session.encoding == "utf-8"
        assert not session.documents.syncs
