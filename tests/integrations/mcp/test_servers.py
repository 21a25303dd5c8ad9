"""MCP servers start, fail, come back and follow the configuration (I.4)."""

import pytest
import trio
from attrs import evolve

from crush_trio.integrations.base import McpFailed
from crush_trio.integrations.mcp.session import ListKind, LoginNeeded, McpFailure, OfferedTool
from crush_trio.wire.config import OAuthToken
from tests.integrations.mcp_fakes import Desks, command, open_configured

pytestmark = pytest.mark.item("I.4")


def server(place, name="a"):
    return place.servers.server(name)


async def call(place, name="a", tool="add"):
    return await server(place, name).use(lambda session: session.call(tool, {}))


async def quiet():
    """Let everybody do what there is to do."""
    await trio.testing.wait_all_tasks_blocked()


# ── Starting ────────────────────────────────────────────────────────────────────────────────────


async def test_servers_start_beside_each_other_and_nobody_waits():
    desks = Desks()
    desks["slow"].silent = True
    async with open_configured(desks, slow=command(), quick=command()) as place:
        assert {name: info.state for name, info in place.servers.states().items()} == {
            "quick": "starting",
            "slow": "starting",
        }
        await quiet()
        assert (place.state("quick"), place.state("slow")) == ("connected", "starting")


async def test_what_a_server_offers_is_there_once_it_is_connected():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        info = place.servers.states()["a"]
        assert (info.tool_count, info.prompt_count, info.resource_count) == (2, 1, 0)
        assert info.connected_at != "0001-01-01T00:00:00Z"
        assert place.tool_names() == [
            "mcp_a_add",
            "mcp_a_sub",
            "list_mcp_resources",
            "read_mcp_resource",
        ]
        assert [prompt.id for prompt in place.servers.prompts()] == ["a:hi"]
        [said] = place.servers.instructions()
        assert (said.server, said.text) == ("a", "Count with it.")
        assert place.told.words() == ["starting", "connected"]
        assert place.told.facts[-1].tool_count == 2


async def test_a_server_that_other_runs_try_again_is_waited_for_once():
    desks = Desks()
    desks["a"].silent = desks["b"].silent = True
    async with open_configured(desks, a=command(), b=command(timeout=25)) as place:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.servers.settled)
            await trio.sleep(20)
            assert place.state("a") == "error"
            place.servers.tools()
        assert trio.current_time() - began == 25
        assert place.state("a") == "starting"


@pytest.mark.item("A8")
@pytest.mark.parametrize(("configured", "seconds"), [({}, 10), ({"timeout": 25}, 25)])
async def test_a_server_that_does_not_answer_is_given_up_in_time(configured, seconds):
    desks = Desks()
    desks["a"].silent = True
    async with open_configured(desks, a=command(**configured)) as place:
        began = trio.current_time()
        await place.servers.settled()
        assert trio.current_time() - began == seconds
        info = place.servers.states()["a"]
        assert info.state == "error"
        assert f"it did not answer within {seconds} seconds; raise" in info.error
    assert desks["a"].open == 0


async def test_a_disabled_server_is_not_started():
    async with open_configured(a=command(disabled=True)) as place:
        await place.servers.settled()
        await quiet()
        assert place.state("a") == "disabled"
        assert place.desks["a"].log == []
        with pytest.raises(McpFailure, match="disabled"):
            await call(place)


async def test_a_failure_is_told_without_secrets():
    desks = Desks()
    desks["a"].refusals = [RuntimeError("refused: s3cr3t-in-env via Bearer abcdefghij\nat line 3")]
    async with open_configured(desks, a=command(env={"K": "s3cr3t-in-env"})) as place:
        await place.servers.settled()
        error = place.servers.states()["a"].error
        assert error == "refused: [redacted] via [redacted] at line 3"
        assert place.told.facts[-1].error == error


async def test_what_a_server_says_about_itself_has_bounds():
    desks = Desks()
    desks["long"].instructions = "x" * 100_000
    desks["bad"].refusals = [McpFailure("x" * 100_000)]
    async with open_configured(desks, long=command(), bad=command()) as place:
        await place.servers.settled()
        [said] = place.servers.instructions()
        assert len(said.text) == 8192
        assert len(place.servers.states()["bad"].error) == 512


async def test_an_error_in_one_server_leaves_the_others_alone():
    desks = Desks()
    desks["a"].refusals = [
        ExceptionGroup("both", [OSError(2, "No such file", "nothing"), KeyError()])
    ]
    async with open_configured(desks, a=command(), b=command()) as place:
        await place.servers.settled()
        assert place.servers.states()["a"].error == "nothing: No such file"
        assert place.state("b") == "connected"


async def test_a_server_that_wants_a_login_says_so_and_what_to_do():
    desks = Desks()
    desks["a"].refusals = [ExceptionGroup("", [LoginNeeded("it wants a login")])]
    async with open_configured(desks, a=command(), b=command()) as place:
        await place.servers.settled()
        assert place.state("a") == "needs auth"
        assert place.servers.pending_logins() == ()
        assert place.servers.login_url("a") == ""
        with pytest.raises(McpFailed, match="configure a header or an oauth_token"):
            await place.servers.log_in("a")
        await place.servers.log_in("b")
        await place.servers.log_in("nobody")


async def test_a_token_goes_along_unless_a_header_says_otherwise():
    token = OAuthToken(access_token="tok-123456")
    own = {"authorization": "Basic x"}
    async with open_configured(
        a=command(oauth_token=token), b=command(oauth_token=token, headers=own)
    ) as place:
        await place.servers.settled()
        headers = {target.name: target.config.headers for target in place.desks.targets}
        assert headers == {"a": {"Authorization": "Bearer tok-123456"}, "b": own}


async def test_a_command_sees_the_environment_of_commands():
    async with open_configured(a=command(env={"MODE": "$HOME/${X:-y}"})) as place:
        await place.servers.settled()
        [target] = place.desks.targets
        assert target.environment["MODE"] == "/y"
        assert target.environment["PATH"] == "/bin"
        assert target.environment["PAGER"] == "cat"
        assert str(target.directory) == "/w"


# ── Using ───────────────────────────────────────────────────────────────────────────────────────


async def test_whoever_uses_a_server_waits_until_it_has_started():
    async with open_configured(a=command()) as place:
        assert place.state("a") == "starting"
        assert (await call(place)).text == "add did it"


async def test_a_server_that_hangs_up_keeps_its_tools_and_the_next_use_brings_it_back():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        place.desks["a"].hang_up()
        await quiet()
        assert place.servers.states()["a"].error == "it has hung up"
        assert place.state("a") == "error"
        assert len(place.tool_names()) == 4
        assert len(place.servers.prompts()) == len(place.servers.instructions()) == 1
        await quiet()
        assert place.desks["a"].log == ["open", "close"]
        assert (await call(place)).text == "add did it"
        assert len(place.tool_names()) == 4
        assert place.told.words() == ["starting", "connected", "error", "starting", "connected"]


async def test_a_session_that_answers_no_ping_is_made_anew_and_asked_once():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        desk = place.desks["a"]
        desk.deaf = True
        began = trio.current_time()
        await call(place)
        assert trio.current_time() - began == 10
        assert desk.log == ["open", "close", "open", ("call", "add", {})]


async def test_a_server_that_does_one_thing_at_a_time_is_left_to_finish_an_open_call():
    desks = Desks()
    async with open_configured(desks, a=command()) as place, trio.open_nursery() as nursery:
        await place.servers.settled()
        desk = desks["a"]
        desk.slow_calls = True
        nursery.start_soon(call, place)
        await quiet()
        desk.deaf = True
        nursery.start_soon(call, place)
        desk.change()
        await place.servers.refresh_tools("a")
        await trio.sleep(60)
        assert desk.log.count("open") == 1
        assert sum(each[0] == "call" for each in desk.log) == 2
        assert place.state("a") == "connected"
        nursery.cancel_scope.cancel()


async def test_many_who_find_a_session_dead_have_it_made_anew_once():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        place.desks["a"].deaf = True
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call, place)
        log = place.desks["a"].log
        assert (log.count("open"), log.count(("call", "add", {}))) == (2, 5)


async def test_a_server_that_does_not_come_back_is_tried_once_and_says_why():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        desk = place.desks["a"]
        desk.refusals = [McpFailure("out of order"), McpFailure("still")]
        desk.hang_up()
        with pytest.raises(McpFailure, match="out of order"):
            await call(place)
        assert desk.log == ["open", "close", "open", "close"]


async def test_a_server_that_never_starts_is_left_alone_for_longer_and_longer():
    desks = Desks()
    desks["a"].refusals = [McpFailure("out of order")] * 4
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        with pytest.raises(McpFailure, match="out of order"):
            await call(place)
        assert desks["a"].log.count("open") == 2
        with pytest.raises(McpFailure, match="out of order; it can be tried again in 1 s"):
            await call(place)
        assert desks["a"].log.count("open") == 2
        await trio.sleep(1)
        with pytest.raises(McpFailure, match=r"out of order$"):
            await call(place)
        with pytest.raises(McpFailure, match="again in 2 s"):
            await call(place)


async def test_a_server_that_could_not_be_started_is_tried_again_by_the_next_step_of_a_run():
    desks = Desks()
    desks["a"].refusals = [McpFailure("not yet")] * 2
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        assert len(place.tool_names()) == 2
        await quiet()
        assert place.state("a") == "error"
        place.tool_names()
        await quiet()
        assert desks["a"].log.count("open") == 2, "it waits a second"
        await trio.sleep(1)
        place.tool_names()
        await quiet()
        assert place.state("a") == "connected"
        assert len(place.tool_names()) == 4


@pytest.mark.parametrize(
    ("program", "configured", "seconds"),
    [("npx", 0, 60), ("/usr/bin/uvx", 0, 60), ("npx", 5, 5), ("desk", 0, 10)],
)
async def test_a_command_that_downloads_its_program_has_a_minute_to_start(
    program, configured, seconds
):
    desks = Desks()
    desks["a"].silent = True
    entry = evolve(command(timeout=configured), command=program)
    async with open_configured(desks, a=entry) as place:
        await place.servers.settled()
        assert trio.current_time() == pytest.approx(seconds)
        assert f"not answer within {seconds} seconds" in place.servers.states()["a"].error


async def test_a_call_in_progress_fails_with_its_session():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        place.desks["a"].slow_calls = True

        async def expect_failure():
            with pytest.raises(McpFailure, match="closed"):
                await call(place)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_failure)
            await quiet()
            place.configure()


async def test_prompts_and_resources_can_be_asked_for():
    async with open_configured(a=command()) as place:
        assert await place.servers.prompt("a", "hi", {"x": "1"}) == "hi {'x': '1'}"
        [found] = await place.servers.read_resource("a", "u")
        assert found.text == "hello"
        with pytest.raises(McpFailed, match=r"a: there is no token=\[redacted\] here"):
            await place.servers.read_resource("a", "none")
        with pytest.raises(McpFailed, match="nobody: no server of this name"):
            await place.servers.prompt("nobody", "hi", {})


async def test_what_takes_a_server_no_work_has_a_limit():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        desk = place.desks["a"]
        desk.slow_calls = True
        with pytest.raises(McpFailure, match="within 10 seconds"):
            await server(place).use_briefly(lambda session: session.call("add", {}))


# ── Lists ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_list_that_has_changed_is_read_again_and_told():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        desk = place.desks["a"]
        desk.tools = [OfferedTool(name="mul")]
        desk.change()
        await quiet()
        assert place.tool_names()[0] == "mcp_a_mul"
        assert place.servers.states()["a"].tool_count == 1
        desk.change()
        desk.change(ListKind.PROMPTS)
        await quiet()
        assert place.told.words() == ["starting", "connected", "tools_list_changed"]
        assert place.told.facts[-1].state == "connected"


async def test_refreshing_tells_nobody():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        place.desks["a"].tools = []
        await place.servers.refresh_tools("a")
        await place.servers.refresh_prompts("a")
        await place.servers.refresh_resources("a")
        await place.servers.refresh_tools("nobody")
        assert place.servers.states()["a"].tool_count == 0
        assert place.told.words() == ["starting", "connected"]


async def test_clients_hear_of_a_list_that_somebody_has_asked_for_before_them():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        desk = place.desks["a"]
        desk.tools = []
        await place.servers.refresh_tools("a")
        desk.change()
        await place.told.until("tools_list_changed")


async def test_a_server_that_calls_every_list_changed_is_not_asked_all_the_time():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        desk = place.desks["a"]
        asked = []

        async def tools(session):
            await trio.lowlevel.checkpoint()
            asked.append(trio.current_time())
            session.desk.change()
            return tuple(desk.tools)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.integrations.mcp_fakes.Session.tools", tools)
            desk.change()
            await trio.sleep(2)
        assert len(asked) <= 11


async def test_a_server_that_cannot_be_refreshed_has_failed():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        place.desks["a"].hang_up()
        await place.servers.refresh_tools("a")
        await quiet()
        assert place.state("a") == "error"
        await place.servers.refresh_tools("a")


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"enabled_tools": ("add",)}, ["mcp_a_add"]),
        ({"disabled_tools": ("add",)}, ["mcp_a_sub"]),
        ({"enabled_tools": ("add", "sub"), "disabled_tools": ("sub",)}, ["mcp_a_add"]),
    ],
)
async def test_only_the_tools_that_are_wanted_are_there(filters, left):
    async with open_configured(a=command(**filters)) as place:
        await place.servers.settled()
        assert place.tool_names()[:-2] == left
        assert place.servers.states()["a"].tool_count == len(left)


# ── Following the configuration ─────────────────────────────────────────────────────────────────


async def test_servers_follow_the_configuration_and_what_is_unchanged_is_left_alone():
    async with open_configured(same=command(), other=command(), gone=command()) as place:
        await place.servers.settled()
        place.configure(same=command(), other=command(args=("x",)), new=command())
        await quiet()
        assert sorted(place.servers.states()) == ["new", "other", "same"]
        assert place.desks["same"].log == ["open"]
        assert place.desks["other"].log == ["open", "close", "open"]
        assert place.desks["gone"].log == ["open", "close"]
        assert place.told.words("gone")[-1] == "disabled"
        assert place.told.words("other") == ["starting", "connected"] * 2


async def test_a_change_of_configuration_tries_what_has_failed_again():
    desks = Desks()
    desks["a"].refusals = [McpFailure("not yet")]
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        place.configure(a=command(), b=command())
        await quiet()
        assert place.state("a") == "connected"


async def test_reading_the_same_configuration_again_tells_nobody_and_tries_nothing():
    desks = Desks()
    desks["a"].refusals = [McpFailure("no"), McpFailure("no")]
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        told = place.told.words()
        place.reload()
        await quiet()
        assert place.told.words() == told == ["starting", "error"]
        assert desks["a"].log == ["open", "close"]


async def test_a_server_that_changes_while_it_starts_is_the_new_one_in_the_end():
    desks = Desks()
    desks["a"].silent = True
    async with open_configured(desks, a=command()) as place:
        await quiet()
        desks["a"].silent = False
        place.configure(a=command(args=("new",)))
        await place.servers.settled()
        assert place.state("a") == "connected"
        assert place.desks.targets[-1].config.args == ("new",)
        assert trio.current_time() < 10


async def test_the_old_server_is_gone_before_the_new_one_begins():
    desks = Desks()
    desks["a"].farewell = 3
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        place.configure()
        await quiet()
        assert place.servers.states() == {}
        place.configure(a=command(args=("new",)))
        await place.servers.settled()
        assert desks["a"].log == ["open", "close", "open"]


async def test_a_server_that_was_gone_for_a_while_can_come_back():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        place.configure()
        await quiet()
        place.configure(a=command())
        await quiet()
        assert place.state("a") == "connected"


async def test_a_server_that_is_taken_away_fails_whoever_uses_it():
    desks = Desks()
    desks["a"].silent = True
    async with open_configured(desks, a=command()) as place:

        async def expect_failure():
            with pytest.raises(McpFailure, match="stopped"):
                await call(place)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_failure)
            await quiet()
            place.configure()
        assert trio.current_time() < 10


async def test_closing_leaves_no_server_and_nobody_waiting():
    desks = Desks()
    desks["a"].silent = True
    async with trio.open_nursery() as nursery:
        async with open_configured(desks, a=command(), b=command()) as place:
            await quiet()
            nursery.start_soon(place.servers.settled)
            await quiet()
        assert (desks["a"].open, desks["b"].open) == (0, 0)


async def test_a_workspace_without_servers_has_no_tools_for_them():
    async with open_configured() as place:
        assert (place.servers.tools(), place.servers.states()) == ((), {})
        await place.servers.settled()
