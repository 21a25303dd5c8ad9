"""A model asks language servers by the names of things, and what goes wrong is an answer to it."""

import pytest
import trio

from crush_trio.integrations.lsp import symbols as lsp_asking
from crush_trio.integrations.lsp.connection import RpcConnection
from crush_trio.integrations.lsp.session import LspSession
from crush_trio.tools.base import ToolError
from crush_trio.wire.integrations import LspState
from tests.config.homes import Home
from tests.integrations.lsp_bench import Programs
from tests.integrations.lsp_program import Toy
from tests.integrations.lsp_workspace import TOY, lsp, open_place

# Files are read in threads, and the virtual clock does not see those.
pytestmark = [pytest.mark.real_clock, pytest.mark.item("H3")]

MAIN = "# parse is a word here\ndef main\n  😀 parse it\n"
PARSER = "def parse\n  words\n\ndef parser\n  parse again\n"


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    home.write(home.project / "main.toy", MAIN)
    home.write(home.project / "lib" / "parser.toy", PARSER)
    home.write(home.project / "notes.txt", "parse this, too\n")
    return home


def opened(home, **more):
    return open_place(home, lsp(toy=TOY), **more)


async def refused(place, name, /, **arguments):
    with pytest.raises(ToolError) as raised:
        await place.call(name, **arguments)
    return str(raised.value)


NAMES = [
    "lsp_call_hierarchy",
    "lsp_definition",
    "lsp_diagnostics",
    "lsp_references",
    "lsp_rename",
    "lsp_replace_symbol",
    "lsp_restart",
    "lsp_symbols",
]


async def test_the_tools_are_there_if_a_server_could_be_asked(home):
    async with opened(home) as place:
        tools = place.tools()
        assert sorted(tools) == NAMES
        for tool in tools.values():
            assert tool.description
            assert not tool.parallel
            assert tool.parameters["type"] == "object"
    async with open_place(home, lsp(toy=TOY | {"disabled": True})) as place:
        assert place.tools() == {}


# ── Places ──────────────────────────────────────────────────────────────────────────────────────


async def test_references_are_those_of_the_symbol_and_not_of_the_word(home):
    async with opened(home) as place:
        assert await place.said("lsp_references", symbol="parse") == (
            "parse is used in 3 places:\n"
            "lib/parser.toy:1:5: def parse\n"
            "lib/parser.toy:5:3: parse again\n"
            "main.toy:3:6: 😀 parse it"
        )


@pytest.mark.item("L21")
async def test_names_are_looked_for_in_the_workspace_wherever_the_process_is(
    home, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.toy").write_text("def parse\n")
    monkeypatch.chdir(elsewhere)
    async with opened(home) as place:
        assert await place.said("lsp_definition", symbol="parse") == (
            "parse is defined here:\nlib/parser.toy:1:5: def parse"
        )
        assert "elsewhere" not in repr(place.programs.toy.updates)


async def test_a_path_narrows_where_a_name_is_looked_for(home):
    async with opened(home) as place:
        said = await place.said("lsp_definition", symbol="parse", path="main.toy")
        assert said.endswith("lib/parser.toy:1:5: def parse")
        assert "does not occur in lib" in await refused(
            place, "lsp_definition", symbol="main", path="lib"
        )


async def test_the_last_part_of_a_name_with_parts_is_meant(home):
    async with opened(home) as place:
        assert "3 places" in await place.said("lsp_references", symbol="Parser.parse")


async def test_a_name_in_a_comment_is_no_symbol_and_the_next_place_is_tried(home):
    async with opened(home) as place:
        said = await place.said("lsp_references", symbol="parse", path="main.toy")
        assert "3 places" in said


async def test_what_no_server_knows_is_an_answer(home):
    async with opened(home) as place:
        assert "does not occur" in await refused(place, "lsp_references", symbol="nothing")
        assert "does not occur" in await refused(place, "lsp_references", symbol="pars")
        assert await refused(place, "lsp_references", symbol=" ") == "symbol is required"
        assert "knows a symbol" in await refused(place, "lsp_definition", symbol="again")


async def test_outside_the_workspace_somebody_is_asked_first(home, tmp_path):
    async with opened(home) as place:
        place.person.refuses = True
        with pytest.raises(ToolError, match="denied"):
            await place.call("lsp_references", symbol="parse", path=str(tmp_path))
        assert place.person.wanted.path == tmp_path.resolve()


async def test_a_place_outside_is_named_and_not_quoted(home, tmp_path):
    secret = tmp_path / "secret.toy"
    secret.write_text("def parse secret\n")

    class Wide(Toy):
        def on_definition(self, params):
            found = super().on_definition(params)
            return [found[0] | {"targetUri": secret.as_uri()}]

    async with opened(home, programs=Programs(make=Wide)) as place:
        said = await place.said("lsp_definition", symbol="parse")
        assert said == f"parse is defined here:\n{secret}:1:5"


async def test_only_so_many_places_are_listed(home, monkeypatch):
    monkeypatch.setattr(lsp_asking, "MAX_LISTED", 2)
    async with opened(home) as place:
        assert (await place.said("lsp_references", symbol="parse")).endswith("(1 more)")


# ── Calls, symbols, diagnostics ─────────────────────────────────────────────────────────────────


async def test_who_calls_a_function_and_what_it_calls(home):
    async with opened(home) as place:
        assert await place.said("lsp_call_hierarchy", symbol="parse") == (
            "parse is called by:\n"
            "function parser  lib/parser.toy:4:5: def parser\n"
            "function main  main.toy:2:5: def main"
        )
        assert await place.said("lsp_call_hierarchy", symbol="main", direction="outgoing") == (
            "main calls:\nfunction parse  lib/parser.toy:1:5: def parse"
        )
        said = await place.said("lsp_call_hierarchy", symbol="parse", direction="outgoing")
        assert said == "parse calls nothing that the language server knows of."
        wrong = await refused(place, "lsp_call_hierarchy", symbol="parse", direction="sideways")
        assert wrong.startswith("invalid arguments")


async def test_the_symbols_of_a_file(home):
    async with opened(home) as place:
        assert await place.said("lsp_symbols", file_path="lib/parser.toy") == (
            "function parse (lines 1-2)\nfunction parser (lines 4-5)"
        )
        place.put("empty.toy", "nothing\n")
        assert "no symbols" in await place.said("lsp_symbols", file_path="empty.toy")
        assert "no language server handles notes.txt" in await refused(
            place, "lsp_symbols", file_path="notes.txt"
        )
        assert "does not exist" in await refused(place, "lsp_symbols", file_path="no.toy")


async def test_diagnostics_of_a_file_are_those_of_its_text_on_the_disk(home):
    async with opened(home) as place:
        assert "nothing to complain" in await place.said("lsp_diagnostics", file_path="main.toy")
        place.put("main.toy", "BAD\n")
        assert "error: main.toy:1:1" in await place.said("lsp_diagnostics", file_path="main.toy")


async def test_diagnostics_of_the_project_are_refreshed(home):
    async with opened(home) as place:
        assert "no language server is running" in await refused(place, "lsp_diagnostics")
        await place.servers.viewed(place.root / "main.toy")
        await place.servers.viewed(place.put("gone.toy", "BAD\n"))
        (place.root / "gone.toy").unlink()
        place.put("main.toy", "WARN\n")  # a command might have done that
        said = await place.said("lsp_diagnostics")
        assert said.startswith("Diagnostics of the project:\n")
        assert "warning: main.toy:1:1" in said
        closed = [method for method, _ in place.programs.toy.updates if method.endswith("didClose")]
        assert len(closed) == 1


# ── What goes wrong ─────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_does_not_answer_is_an_error_for_the_model(home, monkeypatch):
    monkeypatch.setitem(LspSession.request.__kwdefaults__, "limit", 0.1)

    class Deaf(Toy):
        def handle(self, message):
            return (
                []
                if message.get("method") == "textDocument/documentSymbol"
                else super().handle(message)
            )

    async with opened(home, programs=Programs(make=Deaf)) as place:
        said = await refused(place, "lsp_symbols", file_path="main.toy")
        assert said == "textDocument/documentSymbol was not answered within 0.1 seconds"


@pytest.mark.item("I.4")
async def test_an_answer_may_take_five_seconds_and_ten_where_it_is_much_to_find_out(
    home, monkeypatch
):
    limits, request = {}, RpcConnection.request

    async def noted(self, method, params=None, *, limit):
        limits[method.rpartition("/")[2]] = limit
        return await request(self, method, params, limit=limit)

    monkeypatch.setattr(RpcConnection, "request", noted)
    async with opened(home) as place:
        for name in ("references", "definition", "call_hierarchy"):
            await place.call(f"lsp_{name}", symbol="parse")
        await place.call("lsp_symbols", file_path="main.toy")
        await place.call("lsp_rename", symbol="parse", new_name="read")
    quick = dict.fromkeys(("references", "definition", "documentSymbol"), 5)
    slow = dict.fromkeys(("rename", "prepareCallHierarchy", "incomingCalls"), 10)
    assert {name: limit for name, limit in limits.items() if name in quick | slow} == quick | slow


async def test_a_crash_in_the_midst_of_a_request_is_an_error_for_the_model(home):
    class Fragile(Toy):
        def on_references(self, _params):
            self.ended = True

        def handle(self, message):
            answer = super().handle(message)
            return [] if self.ended else answer

    async with opened(home, programs=Programs(make=Fragile)) as place:
        assert await refused(place, "lsp_references", symbol="parse") == "it has ended"
        while place.servers.states()["toy"].state is not LspState.ERROR:
            await trio.lowlevel.checkpoint()
        said = await refused(place, "lsp_symbols", file_path="main.toy")
        assert said == "the language server toy is not available: it has ended"


async def test_what_a_server_cannot_do_is_said(home):
    class Plain(Toy):
        def on_initialize(self, params):
            super().on_initialize(params)
            return {"capabilities": {}}

    async with opened(home, programs=Programs(make=Plain)) as place:
        assert await refused(place, "lsp_references", symbol="parse") == (
            "no language server can do that for parser.toy"
        )


@pytest.mark.parametrize("answer", [7, "x", [7], {"a": 1}, [{"uri": 3}], [{"uri": "file:///x"}]])
async def test_an_answer_that_makes_no_sense_is_an_error_for_the_model(home, answer):
    class Odd(Toy):
        def on_references(self, _params):
            return answer

        on_rename = on_references

    async with opened(home, programs=Programs(make=Odd)) as place:
        for name, arguments in (
            ("lsp_references", {"symbol": "parse"}),
            ("lsp_rename", {"symbol": "parse", "new_name": "x"}),
        ):
            assert await refused(place, name, **arguments)


# ── Restarting ──────────────────────────────────────────────────────────────────────────────────


async def test_a_model_can_restart_one_server_or_all(home):
    other = TOY | {"root_markers": ["other.mod"]}
    async with open_place(home, lsp(one=TOY, two=TOY, other=other)) as place:
        assert "none has been started" in await refused(place, "lsp_restart")
        assert await place.said("lsp_restart", name="one") == "one: ready"
        assert await place.said("lsp_restart") == "one: ready"
        assert await place.said("lsp_restart", name="two") == "two: ready"
        assert await place.said("lsp_restart") == "one: ready\ntwo: ready"
        assert (len(place.programs.toys), place.programs.running) == (5, 2)
        for name in ("three", "other"):
            assert "are: one, two" in await refused(place, "lsp_restart", name=name)


async def test_after_a_restart_a_server_knows_the_files_it_knew(home):
    async with opened(home) as place:
        await place.servers.viewed(place.put("bad.toy", "BAD\n"))
        await place.call("lsp_restart")
        assert "error: bad.toy:1:1" in await place.said("lsp_diagnostics")


async def test_a_restart_that_fails_is_told_as_an_error(home):
    async with open_place(home, lsp(toy=TOY | {"command": "no-such-program"})) as place:
        result = await place.call("lsp_restart", name="toy")
        assert (result.is_error, result.content) == (True, "toy: no-such-program was not found")


async def test_a_cancelled_call_leaves_the_server_running(home):
    class Deaf(Toy):
        def handle(self, message):
            return (
                []
                if message.get("method") == "textDocument/references"
                else super().handle(message)
            )

    async with opened(home, programs=Programs(make=Deaf)) as place:
        with trio.move_on_after(0.5):
            await place.call("lsp_references", symbol="parse")
        with trio.fail_after(5):
            assert "parse" in await place.said("lsp_symbols", file_path="lib/parser.toy")
        heard = [method for method, _ in place.programs.toy.updates]
        assert "$/cancelRequest" in heard
        assert place.programs.running == 1
