"""What a server is answered when it speaks first: what it needs, and nothing that it could do harm with."""

import logging
from pathlib import Path

import pytest

from crush_trio.integrations.lsp.connection import UnknownMethod
from crush_trio.integrations.lsp.documents import Documents
from crush_trio.integrations.lsp.protocol import Encoding
from crush_trio.integrations.lsp.session import ClientPeer, encoding_of, initialize_params
from crush_trio.wire.config import LspServerConfig
from tests.config.homes import Home
from tests.integrations.lsp_bench import Programs
from tests.integrations.lsp_program import Toy
from tests.integrations.lsp_workspace import TOY, lsp, open_place

OPTIONS = {"toy": {"strict": True, "a": {"b": 1}}, "dotted.name": 2}


@pytest.fixture
def said():
    return []


@pytest.fixture
def answers(said):
    return ClientPeer(
        Path("/w/project"), LspServerConfig(command="x", options=OPTIONS), said.append
    )


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"section": "toy"}, OPTIONS["toy"]),
        ({"section": "toy.a.b"}, 1),
        ({"section": "dotted.name"}, 2),
        ({"section": "other"}, None),
        ({"section": "toy.strict.deeper"}, None),
        ({"section": ""}, OPTIONS),
        ({}, OPTIONS),
        (None, OPTIONS),
    ],
)
def test_a_server_is_given_the_settings_it_asks_for(answers, item, expected):
    assert answers.asked("workspace/configuration", {"items": [item, item]}) == [expected] * 2


@pytest.mark.parametrize("params", [None, {}, {"items": None}, {"items": {}}])
def test_one_that_asks_for_no_settings_gets_none(answers, params):
    assert answers.asked("workspace/configuration", params) == []


def test_it_may_register_and_report_and_must_not_write(answers):
    for method in ("client/registerCapability", "window/workDoneProgress/create"):
        assert answers.asked(method, {}) is None
    assert answers.asked("workspace/workspaceFolders", None) == [
        {"uri": "file:///w/project", "name": "project"}
    ]
    edit = {"edit": {"changes": {"file:///w/project/a": []}}}
    assert answers.asked("workspace/applyEdit", edit)["applied"] is False
    assert answers.asked("window/showDocument", {"uri": "http://x"}) == {"success": False}
    with pytest.raises(UnknownMethod):
        answers.asked("workspace/nonsense", None)


def test_diagnostics_are_taken_and_words_for_people_passed_on(answers, said):
    about = {"uri": "file:///w/project/a", "diagnostics": [{"message": "bad"}]}
    answers.notified("textDocument/publishDiagnostics", about)  # before it is ready: nobody listens
    answers.documents = Documents(lambda *_: None)
    answers.notified("textDocument/publishDiagnostics", about)
    assert answers.documents.count == 1
    answers.notified("window/logMessage", {"type": 3, "message": "hello"})
    answers.notified("window/showMessage", None)
    answers.notified("$/progress", {"token": 1})
    assert said == ["hello"]


def test_it_is_offered_what_we_do_and_nothing_else():
    params = initialize_params(Path("/w"), LspServerConfig(command="x"))
    assert params["rootUri"] == "file:///w"
    assert "initializationOptions" not in params
    workspace = params["capabilities"]["workspace"]
    assert workspace["applyEdit"] is False
    assert "resourceOperations" not in workspace["workspaceEdit"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [({}, Encoding.UTF16), ({"positionEncoding": "utf-8"}, Encoding.UTF8)]
    + [({"positionEncoding": odd}, Encoding.UTF16) for odd in (None, 3, "utf-7")],
)
def test_it_counts_in_utf16_unless_it_says_so(said, expected):
    assert encoding_of(said) is expected


class Talker(Toy):
    """Says something to people when it is introduced."""

    def on_initialized(self, _params):
        said = {"type": 3, "message": "my token is tok-secret-value"}
        return [{"jsonrpc": "2.0", "method": "window/logMessage", "params": said}]


@pytest.mark.real_clock
@pytest.mark.parametrize("wanted", [True, False])
async def test_what_servers_say_to_people_is_logged_on_demand_and_without_secrets(
    tmp_path, caplog, wanted
):
    caplog.set_level(logging.INFO)
    home = Home(tmp_path, {"MY_TOKEN": "tok-secret-value"})
    config = lsp(toy=TOY) | {"options": {"debug_lsp": wanted}}
    async with open_place(home, config, programs=Programs(make=Talker)) as place:
        await place.servers.changed(place.put("a.toy", "x"))
    texts = [record.text for record in caplog.records if record.msg == "lsp.said"]
    assert texts == (["my token is [redacted]"] if wanted else [])


class Watcher(Toy):
    """Wants to hear of changes of other files than its own."""

    def on_initialized(self, _params):
        watchers = [{"globPattern": "**/*.{mod,sum}"}, {"globPattern": "**["}, {"globPattern": {}}]
        files = {"method": "workspace/didChangeWatchedFiles", "registerOptions": {}, "id": "f"}
        files["registerOptions"]["watchers"] = watchers
        other = {"method": "workspace/didChangeConfiguration", "id": "c"}
        params = {"registrations": [files, other]}
        method = "client/registerCapability"
        return [{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}]

    def heard(self):
        """Return the changes of files that it was notified of: name and type."""
        method = "workspace/didChangeWatchedFiles"
        said = [params["changes"] for name, params in self.updates if name == method]
        return [(Path(each["uri"]).name, each["type"]) for [each] in said]


@pytest.mark.real_clock
async def test_a_server_hears_of_the_files_it_watches_and_of_deleted_ones(tmp_path):
    async with open_place(Home(tmp_path), lsp(toy=TOY), programs=Programs(make=Watcher)) as place:
        path = place.put("a.toy", "x")
        await place.servers.changed(path)
        await place.said("write", file_path="toy.mod", content="module x\n")
        await place.said("write", file_path="notes.txt", content="none of its business\n")
        path.unlink()
        await place.said("lsp_diagnostics")
        await place.said("lsp_diagnostics")
        toy = place.programs.toy
        assert toy.heard() == [("a.toy", 1), ("toy.mod", 2), ("a.toy", 3)]


def test_watched_files_may_be_unregistered_and_named_from_the_root(answers):
    def register(pattern, name="f"):
        options = {"watchers": [{"globPattern": pattern}]}
        method = "workspace/didChangeWatchedFiles"
        registered = {"id": name, "method": method, "registerOptions": options}
        answers.asked("client/registerCapability", {"registrations": [registered]})

    register("/w/project/**/*.mod")
    assert answers.watches(Path("/w/project/deep/go.mod"))
    assert not answers.watches(Path("/w/project/go.sum"))
    answers.asked("client/unregisterCapability", {"unregisterations": [{"id": "f"}]})
    assert not answers.watches(Path("/w/project/deep/go.mod"))
    register("go.sum")
    assert answers.watches(Path("/w/project/go.sum"))
    assert not answers.watches(Path("/w/project/deep/go.sum"))
