"""MCP servers that are commands: they are talked to, they see what they may, and they are gone in the end."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import trio
import trio.testing

from crush_trio.integrations.mcp.session import McpFailure
from crush_trio.integrations.mcp.stdio import LineReader
from tests.config.homes import SECRET, Home
from tests.integrations.mcp_real import desk, open_real, script, use

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.item("I.4")]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def alive(pid):
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def open_reader(lines):
    sender, receiver = trio.testing.memory_stream_one_way_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send_all, lines)
        yield LineReader(receiver)


async def test_a_command_is_started_and_talked_to(home):
    home.write(home.user_file, {"mcp": {"desk": desk()}})
    async with open_real(home) as place:
        await place.servers.settled()
        info = place.servers.states()["desk"]
        assert (info.state, info.error, info.tool_count) == ("connected", "", 7)
        assert (info.prompt_count, info.resource_count) == (1, 1)
        assert "mcp_desk_add" in place.tool_names()
        [said] = place.servers.instructions()
        assert said.text == "Count with add.\nNothing else."
        assert (await use(place, "add", {"a": 19, "b": 23})).text == "42"
        failed = await use(place, "fail")
        assert (failed.is_error, "fail" in failed.text) == (True, True)
        picture = await use(place, "picture")
        assert (picture.text, picture.media[0].mime_type) == ("a dot", "image/png")
        assert picture.media[0].data.startswith(b"\x89PNG")
        [prompt] = place.servers.prompts()
        assert (prompt.id, prompt.title, prompt.arguments[0].required) == (
            "desk:review",
            "Review",
            True,
        )
        filled = await place.servers.prompt("desk", "review", {"focus": "tests"})
        assert filled == "Review the tests."
        [note] = await place.servers.read_resource("desk", "desk://note")
        assert (note.text, note.mime_type) == ("remember the milk", "text/plain")


async def test_a_tool_that_appears_is_there_and_told_of(home):
    home.write(home.user_file, {"mcp": {"desk": desk()}})
    async with open_real(home) as place:
        await use(place, "learn")
        await place.told.until("tools_list_changed")
        assert "mcp_desk_fresh" in place.tool_names()
        assert place.told.words() == ["starting", "connected", "tools_list_changed"]
        assert (await use(place, "fresh")).text == "new"


async def test_a_command_sees_what_is_configured_and_nothing_of_the_process(home, monkeypatch):
    monkeypatch.setenv("LEAKED", "from the process")
    home.environment["USERS_OWN"] = "yes"
    home.write(home.user_file, {"env": {"E": "1"}, "mcp": {"desk": desk(env={"MODE": "$E$E"})}})
    async with open_real(home) as place:
        seen = (await use(place, "variables")).text.splitlines()
        assert {"MODE=11", "USERS_OWN=yes", "E=1", "CRUSH=1"} <= set(seen)
        assert not any(line.startswith("LEAKED") for line in seen)


async def test_a_command_and_all_it_has_started_are_gone_when_the_workspace_is(home):
    home.write(home.user_file, {"mcp": {"desk": desk()}})
    noted = home.root / "pids"
    async with open_real(home) as place:
        await use(place, "spawn", {"pid_file": str(noted)})
        pids = noted.read_text().split()
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


async def test_a_command_that_ends_is_told_of_and_started_again_by_the_next_use(home):
    home.write(home.user_file, {"mcp": {"desk": desk()}})
    async with open_real(home) as place:
        with pytest.raises(McpFailure):
            await use(place, "die")
        await place.told.until("error")
        error = place.servers.states()["desk"].error
        assert error == "the command has ended, with exit code 3"
        assert "mcp_desk_add" in place.tool_names()
        assert (await use(place, "add", {"a": 1, "b": 1})).text == "2"


async def test_a_cancelled_call_leaves_the_server_usable(home):
    home.write(home.user_file, {"mcp": {"desk": desk()}})
    async with open_real(home) as place:
        await place.servers.settled()
        with trio.move_on_after(0):
            await use(place, "add", {"a": 1, "b": 1})
        assert (await use(place, "add", {"a": 2, "b": 2})).text == "4"
        assert place.told.words() == ["starting", "connected"]


FAILING = {
    "missing": (script("x") | {"command": "/no/such/program"}, "/no/such/program: No such file"),
    "nothing": ({"type": "stdio"}, "it has no command"),
    "ends": (script("echo oops >&2; exit 7"), "the command has ended, with exit code 7"),
}


@pytest.mark.parametrize("name", FAILING)
async def test_a_command_that_cannot_work_says_why(home, name):
    entry, why = FAILING[name]
    home.write(home.user_file, {"mcp": {"s": entry}})
    async with open_real(home) as place:
        await place.servers.settled()
        info = place.servers.states()["s"]
        assert info.state == "error"
        assert why in info.error


async def test_a_command_that_never_answers_is_ended_in_time_even_if_it_does_not_want_to(home):
    noted = home.root / "pid"
    stubborn = f"trap '' TERM; echo $$ > {noted}; while :; do sleep 1; done"
    home.write(home.user_file, {"mcp": {"s": script(stubborn, timeout=1)}})
    async with open_real(home) as place:
        await place.servers.settled()
        info = place.servers.states()["s"]
        assert info.state == "error"
        assert "it did not answer within 1 seconds; raise" in info.error
        assert not alive(noted.read_text().strip())


async def test_what_a_command_complains_about_is_logged_and_told_to_no_client(home, caplog):
    home.environment["TOKEN"] = SECRET
    shouting = script('echo "bad token $T" >&2; exit 1', env={"T": "$TOKEN"})
    home.write(home.user_file, {"mcp": {"s": shouting}})
    async with open_real(home) as place:
        await place.servers.settled()
        assert "bad token" not in place.servers.states()["s"].error
    [record] = [each for each in caplog.records if each.msg == "mcp.complaint"]
    assert "bad token [redacted]" in record.stderr
    error = place.servers.states()["s"].error
    assert f"mcp.failed: s: {error}" in caplog.messages
    assert not any("bad token" in fact.error for fact in place.told.facts)


async def test_lines_that_are_no_messages_are_passed_over(home):
    greeting = script(f'echo "Welcome!"; echo "{{}}"; exec {sys.executable} "$0"')
    greeting["args"].append(desk()["args"][0])
    home.write(home.user_file, {"mcp": {"desk": greeting}})
    async with open_real(home) as place:
        assert (await use(place, "add", {"a": 1, "b": 2})).text == "3"


@pytest.mark.parametrize(
    ("start", "end", "answered"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":"', b'"}', 7),
        (b'{"result":"', b'","jsonrpc":"2.0","id":8}', 8),
        (b'{"id": 7, "jsonrpc": "2.0", "result": "', b'"}', 7),
        (b'{"result":"', b'","id":8,"jsonrpc":"2.0"}', 8),
        (b'{"jsonrpc":"2.0","result":"', b'","id":8}', 8),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":"', b'"}', None),
    ],
)
async def test_a_message_that_is_too_long_fails_its_request_and_nothing_else(
    monkeypatch, start, end, answered
):
    monkeypatch.setattr("crush_trio.integrations.mcp.stdio.LONGEST_MESSAGE", 1000)
    lines = start + b"x" * 5000 + end + b'\n{"jsonrpc":"2.0","id":9,"result":{}}\n'
    async with open_reader(lines) as reader:
        if answered is not None:
            refused = (await reader.receive()).message
            assert (refused.id, "too long" in refused.error.message) == (answered, True)
        assert (await reader.receive()).message.id == 9


async def test_a_too_long_answer_to_an_unknown_request_ends_the_connection(monkeypatch):
    monkeypatch.setattr("crush_trio.integrations.mcp.stdio.LONGEST_MESSAGE", 1000)
    async with open_reader(b'{"result":"' + b"x" * 5000 + b'"}\n') as reader:
        with pytest.raises(anyio.EndOfStream):
            await reader.receive()


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":null}',
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"\\ud800"}}',
        b'{"error":"it broke","jsonrpc":"2.0","id":7}',
    ],
)
async def test_a_malformed_answer_fails_its_request(line):
    async with open_reader(line + b"\n") as reader:
        refused = (await reader.receive()).message
        assert (refused.id, "not what the protocol wants" in refused.error.message) == (7, True)


@pytest.mark.item("I4")
async def test_a_project_that_is_not_trusted_starts_nothing(home):
    noted = home.root / "started"
    entries = {
        "c": script(f"touch {noted}"),
        "u": {"type": "http", "url": "http://127.0.0.1:9/mcp"},
    }
    home.write(home.project_file, {"mcp": entries})
    async with open_real(home) as place:
        await place.servers.settled()
        for info in place.servers.states().values():
            assert info.state == "error"
            assert info.error.startswith("not started, because the file came with the project")
            assert "crush-trio trust" in info.error
        with pytest.raises(McpFailure, match="not started"):
            await use(place, "x", name="c")
    assert not noted.exists()
    home.trust()
    async with open_real(home) as place:
        await place.servers.settled()
    assert noted.exists()


async def test_a_project_that_is_not_trusted_changes_no_server_of_the_user(home):
    noted = home.root / "started"
    home.write(home.user_file, {"mcp": {"desk": desk()}})
    home.write(home.project_file, {"mcp": {"desk": {"args": ["-c", f"open({str(noted)!r}, 'w')"]}}})
    async with open_real(home) as place:
        await place.servers.settled()
        assert place.state("desk") == "error"
    assert not noted.exists()


async def test_without_the_package_it_is_said_what_to_install(home, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("crush_trio.integrations.mcp.")]:
        if module.endswith((".sdk", ".stdio", ".transports")):
            monkeypatch.delitem(sys.modules, module)
    for module in [name for name in sys.modules if name == "mcp" or name.startswith("mcp.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mcp", None)
    home.write(home.user_file, {"mcp": {"desk": desk()}})
    async with open_real(home) as place:
        await place.servers.settled()
        info = place.servers.states()["desk"]
        assert info.state == "error"
        assert "pip install 'crush-trio[mcp]'" in info.error
