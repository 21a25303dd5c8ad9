"""Changes that a server proposes are shown, agreed upon, and made through the door of all changes."""

import pytest
import trio

from crush_trio.integrations.lsp import edit_tools as lsp_changes
from crush_trio.integrations.lsp.edit_tools import (
    ReplaceSymbolArguments,
    SymbolAction,
    replace_symbol_lines,
)
from crush_trio.integrations.lsp.protocol import (
    BadEdit,
    Symbol,
    TextPosition,
    TextRange,
    read_workspace_edit,
)
from crush_trio.tools.base import ToolError
from crush_trio.tools.files.changes import FileChanges
from crush_trio.tools.files.text import FileText
from tests.config.homes import Home
from tests.integrations.lsp_bench import Programs
from tests.integrations.lsp_program import Toy
from tests.integrations.lsp_workspace import TOY, lsp, open_place

# Files are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock

MAIN = "\ufeffdef main\r\n  😀 parse it, parse\r\n"
PARSER = "def parse\n  words\n"


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    (home.project / "main.toy").write_bytes(MAIN.encode())
    home.write(home.project / "lib" / "parser.toy", PARSER)
    return home


def opened(home, toy=Toy, **more):
    return open_place(home, lsp(toy=TOY), programs=Programs(make=toy), **more)


async def refused(place, name, /, **arguments):
    with pytest.raises(ToolError) as raised:
        await place.call(name, **arguments)
    return str(raised.value)


async def rename(place):
    return await place.said("lsp_rename", symbol="parse", new_name="read")


def untouched(place):
    return (place.get("main.toy"), place.get("lib/parser.toy")) == (MAIN, PARSER)


# ── Renaming ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H3", "H6")
async def test_a_rename_reaches_every_file_and_keeps_what_they_held(home):
    async with opened(home) as place:
        assert await rename(place) == (
            "Renamed parse to read, 3 edits in 2 files:\nlib/parser.toy\nmain.toy"
        )
        renamed = "\ufeffdef main\r\n  😀 read it, read\r\n"
        assert place.get("main.toy") == renamed
        assert place.get("lib/parser.toy") == "def read\n  words\n"
        assert await place.versions(place.root / "main.toy") == [(0, MAIN), (1, renamed)]
        kept = await place.versions(place.root / "lib/parser.toy")
        assert kept == [(0, PARSER), (1, "def read\n  words\n")]


@pytest.mark.item("L47", "F1")
async def test_a_person_is_asked_once_for_all_files(home):
    async with opened(home) as place:
        await rename(place)
        wanted = place.person.wanted
        assert (wanted.action, wanted.params, wanted.path) == ("", None, place.root)
        assert wanted.description == (
            "Rename parse to read, 3 edits in 2 files: lib/parser.toy, main.toy"
        )


async def test_if_the_person_says_no_nothing_is_changed(home):
    async with opened(home) as place:
        place.person.refuses = True
        assert "denied" in await refused(place, "lsp_rename", symbol="parse", new_name="read")
        assert untouched(place)
        assert await place.versions(place.root / "main.toy") == []


async def test_the_servers_know_the_renamed_files(home):
    async with opened(home) as place:
        await place.servers.viewed(place.root / "main.toy")
        await rename(place)
        assert "1 place" in await place.said("lsp_references", symbol="it")
        said = await place.said("lsp_references", symbol="read")
        assert "3 places" in said


async def test_a_file_that_was_changed_while_a_person_thought_is_not_overwritten(home):
    async with opened(home) as place:

        async def another_editor():
            place.put("main.toy", "theirs\n")

        place.person.meanwhile = another_editor
        said = await refused(place, "lsp_rename", symbol="parse", new_name="read")
        assert "changed by another program" in said
        assert said.endswith("Of the others these were written: lib/parser.toy.")
        assert place.get("main.toy") == "theirs\n"


async def test_a_server_that_wants_to_change_files_elsewhere_changes_nothing(home, tmp_path):
    outside = tmp_path / "outside.toy"
    outside.write_text("def parse\n")

    class Reaching(Toy):
        def texts(self):
            return super().texts() | {outside.as_uri(): outside.read_text()}

    async with opened(home, Reaching) as place:
        said = await refused(place, "lsp_rename", symbol="parse", new_name="read")
        assert said == f"the server wants to change {outside}, which is not a file of the project"
        assert untouched(place)
        assert outside.read_text() == "def parse\n"
        assert place.person.asked == []


async def test_nor_through_a_link(home, tmp_path):
    outside = tmp_path / "outside.toy"
    outside.write_text("def parse\n")
    (home.project / "link.toy").symlink_to(outside)
    async with opened(home) as place:
        said = await refused(place, "lsp_rename", symbol="parse", new_name="read")
        assert "which is not a file of the project" in said
        assert (untouched(place), outside.read_text()) == (True, "def parse\n")


async def test_nor_what_is_private(home):
    secret = home.project / "keys"
    home.write(secret / "k.toy", "def parse\n")
    async with opened(home, private=(secret,)) as place:
        assert "not a file of the project" in await refused(
            place, "lsp_rename", symbol="parse", new_name="read"
        )
        assert untouched(place)


async def test_a_change_for_another_version_of_a_file_is_not_made(home):
    class Stale(Toy):
        def on_rename(self, params):
            answer = super().on_rename(params)
            for change in answer["documentChanges"]:
                change["textDocument"]["version"] = 99
            return answer

    async with opened(home, Stale) as place:
        said = await refused(place, "lsp_rename", symbol="parse", new_name="read")
        assert "another version" in said
        assert untouched(place)


async def test_too_many_files_are_too_many(home, monkeypatch):
    monkeypatch.setattr(lsp_changes, "MAX_FILES", 1)
    async with opened(home) as place:
        assert "2 files; 1 are the most" in await refused(
            place, "lsp_rename", symbol="parse", new_name="read"
        )


async def test_a_cancel_while_files_are_written_leaves_no_half_a_rename(home, monkeypatch):
    write, scope = FileChanges.write, trio.CancelScope()

    async def cancelled_meanwhile(self, call, proposal):
        scope.cancel()
        await write(self, call, proposal)

    monkeypatch.setattr(FileChanges, "write", cancelled_meanwhile)
    async with opened(home) as place:
        with scope:
            await rename(place)
        assert scope.cancelled_caught
        assert place.get("lib/parser.toy") == "def read\n  words\n"
        assert "read it, read" in place.get("main.toy")


async def test_a_new_name_is_required(home):
    async with opened(home) as place:
        assert (
            await refused(place, "lsp_rename", symbol="x", new_name=" ") == "new_name is required"
        )


@pytest.mark.parametrize("kind", ["create", "rename", "delete"])
def test_a_server_may_not_create_move_or_delete_files(kind):
    with pytest.raises(BadEdit, match="create, move or delete"):
        read_workspace_edit({"documentChanges": [{"kind": kind, "uri": "file:///w/x"}]})


def test_edits_of_one_file_may_come_in_pieces_or_by_address():
    edit = {"range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}}
    edit |= {"newText": "x"}
    document = {"textDocument": {"uri": "file:///w/a", "version": 3}, "edits": [edit]}
    [merged] = read_workspace_edit({"documentChanges": [document, document]})
    assert (len(merged.edits), merged.version) == (2, 3)
    [plain] = read_workspace_edit({"changes": {"file:///w/a": [edit], "file:///w/b": []}})
    assert (plain.uri, plain.version, len(plain.edits)) == ("file:///w/a", None, 1)
    assert read_workspace_edit(None) == ()


# ── Replacing ───────────────────────────────────────────────────────────────────────────────────


def symbol(first, last, end=99):
    span = TextRange(TextPosition(first, 4), TextPosition(last, end))
    return Symbol(name="s", kind="function", range=span, name_range=span)


def replaced(content, action, replacement="new", first=1, last=2, end=99):
    arguments = ReplaceSymbolArguments(
        symbol="s", file_path="f", replacement=replacement, action=SymbolAction(action)
    )
    return replace_symbol_lines(FileText(content), symbol(first, last, end), arguments).content


@pytest.mark.item("H3")
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("replace", "0\nnew\n3\n"),
        ("add_before", "0\nnew\n1\n2\n3\n"),
        ("add_after", "0\n1\n2\nnew\n3\n"),
        ("delete", "0\n3\n"),
    ],
)
def test_whole_lines_are_replaced_put_beside_or_deleted(action, expected):
    assert replaced("0\n1\n2\n3\n", action) == expected
    assert replaced("0\n1\n2\n3\n", action, "new\n") == expected
    crlf = "\ufeff0\r\n1\r\n2\r\n3\r\n"
    assert replaced(crlf, action) == "\ufeff" + expected.replace("\n", "\r\n")


def test_a_symbol_that_ends_where_a_line_begins_does_not_reach_into_it():
    assert replaced("0\n1\n2\n3\n", "delete", end=0) == "0\n2\n3\n"


def test_the_last_line_may_have_no_ending():
    assert replaced("0\n1\n2", "replace") == "0\nnew"
    assert replaced("0\n1\n2", "add_after") == "0\n1\n2\nnew"


@pytest.mark.item("H3", "H6", "L47")
async def test_a_symbol_of_a_file_is_replaced_if_a_person_agrees(home):
    async with opened(home) as place:
        path = place.root / "lib" / "parser.toy"
        result = await place.call(
            "lsp_replace_symbol",
            symbol="parse",
            file_path="lib/parser.toy",
            replacement="def parse\n  BAD",
        )
        after = "def parse\n  BAD\n"
        assert path.read_text() == after
        assert "error: lib/parser.toy:2:3" in result.content
        assert result.metadata == {
            "file_path": str(path),
            "old_content": PARSER,
            "new_content": after,
            "action": "replace",
        }
        wanted = place.person.wanted
        assert wanted.action == ""
        assert wanted.params == {
            "file_path": str(path),
            "old_content": PARSER,
            "new_content": after,
        }
        assert await place.versions(path) == [(0, PARSER), (1, after)]


async def test_what_cannot_be_replaced_is_said(home):
    async with opened(home) as place:
        place.put("twice.toy", "def a\ndef a\n")
        for arguments, expected in (
            ({"symbol": "a", "file_path": "twice.toy", "action": "delete"}, "lines 1, 2"),
            ({"symbol": "zzz", "file_path": "twice.toy", "action": "delete"}, "finds no zzz"),
            ({"symbol": "a", "file_path": "twice.toy"}, "replacement is required"),
            ({"symbol": "a", "file_path": "x.txt", "action": "delete"}, "no language server"),
        ):
            assert expected in await refused(place, "lsp_replace_symbol", **arguments)
        assert place.get("twice.toy") == "def a\ndef a\n"
