"""The configuration of an open workspace."""

import json

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.config import CommandFailed, ConfigInvalid, open_live_config
from crush_trio.errors import WorkspaceClosing
from crush_trio.testing import Gate
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.requests import ModelType, Scope
from tests.config.homes import CATALOGUE, custom


def live_config(home, **kwargs):
    return open_live_config(home.places(), catalogue=CATALOGUE, **kwargs)


async def test_a_change_makes_a_new_snapshot_and_leaves_the_old_one_alone(home):
    async with live_config(home) as live:
        before = live.current
        assert await live.set(Scope.GLOBAL, "options.debug", True) is True
        assert before.config.options.debug is False
        assert live.current.config.options.debug is True
        assert (before.revision, live.current.revision) == (1, 2)


async def test_what_changes_nothing_makes_no_revision(home):
    async with live_config(home) as live:
        assert await live.remove(Scope.GLOBAL, "options.debug") is False
        assert live.current.revision == 1


async def test_what_is_refused_changes_nothing_and_the_next_change_works(home):
    async with live_config(home) as live:
        with pytest.raises(ConfigInvalid, match="expected a boolean"):
            await live.set(Scope.GLOBAL, "options.debug", "yes")
        assert live.current.revision == 1
        assert await live.set(Scope.GLOBAL, "options.debug", True)
        assert await live.remove(Scope.GLOBAL, "options.debug")
        assert live.current.revision == 3


async def test_every_kind_of_change_holds_at_once(home):
    home.write(home.user_file, {"providers": {"mine": custom()}})
    chosen = SelectedModel(provider="mine", model="m2")
    async with live_config(home) as live:
        await live.set_model(Scope.WORKSPACE, ModelType.LARGE, chosen)
        assert live.current.large.selected == chosen
        assert live.current.config.recent_models == {"large": (chosen,)}
        await live.set_compact_mode(Scope.GLOBAL, True)
        assert live.current.config.options.tui.compact_mode is True
        assert "openai" not in live.current.config.providers
        await live.set_provider_key(Scope.GLOBAL, "openai", "string", "k")
        assert (await live.current.resolve_provider("openai")).config.api_key == "k"
        home.write(home.project_file, {"mcp": {"m": {"command": "x"}}})
        await live.reload()
        assert not live.current.may_run("mcp", "m")
        await live.trust(home.project)
        assert live.current.may_run("mcp", "m")


async def test_reload_sees_what_others_wrote(home):
    async with live_config(home) as live:
        home.write(home.user_file, {"options": {"debug": True}})
        assert live.current.config.options.debug is False
        loaded = await live.reload()
        assert loaded is live.current
        assert loaded.config.options.debug is True
        assert loaded.revision == 2


async def test_a_broken_file_leaves_the_old_snapshot_in_force(home):
    async with live_config(home) as live:
        home.write(home.user_file, "{")
        with pytest.raises(ConfigInvalid):
            await live.reload()
        assert live.current.revision == 1
        home.write(home.user_file, "{}")
        assert (await live.reload()).revision == 2


async def test_a_broken_file_keeps_a_workspace_from_opening(home):
    home.write(home.user_file, "{")
    with pytest.raises(ConfigInvalid):
        async with live_config(home):
            raise AssertionError("not reached")


@pytest.mark.parametrize("seed", range(3))
async def test_changes_are_made_in_the_order_in_which_they_were_asked_for(home, seed):
    seen = []

    async def change(number):
        await live.set(Scope.GLOBAL, "options.notifications", f"n{number}")
        await live.set(Scope.GLOBAL, f"env.V{number}", str(number))

    async def watch():
        while not seen or seen[-1] < 11:
            seen.append((await live.newer_than(seen[-1] if seen else 0)).revision)

    async with live_config(home) as live, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for number in range(5):
            nursery.start_soon(change, number)
    assert seen == sorted(set(seen))
    assert live.current.revision == 11, "no change was lost, none was made twice"
    assert live.current.env == {f"V{number}": str(number) for number in range(5)}
    assert json.loads(home.data_file.read_text())["env"] == live.current.env


async def test_one_caller_after_the_other_wins_in_order(home):
    async with live_config(home) as live, trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(live.set, Scope.GLOBAL, "options.notifications", f"n{number}")
            await wait_all_tasks_blocked()
    assert live.current.config.options.notifications == "n4"
    assert live.current.revision == 6


@pytest.mark.slow
@pytest.mark.real_clock
async def test_two_workspaces_of_one_user_do_not_lose_each_others_changes(home):
    other = home.root / "other"
    other.mkdir()
    async with (
        live_config(home) as first,
        open_live_config(home.places(other)) as second,
        trio.open_nursery() as nursery,
    ):
        for number in range(5):
            nursery.start_soon(first.set, Scope.GLOBAL, f"env.A{number}", "x")
            nursery.start_soon(second.set, Scope.GLOBAL, f"env.B{number}", "x")
    written = json.loads(home.data_file.read_text())["env"]
    assert written.keys() == {f"{name}{number}" for name in "AB" for number in range(5)}


# ── Hanging up and closing ──────────────────────────────────────────────────────────────────────


async def test_a_change_whose_asker_hangs_up_is_shown_all_the_same(home):
    gate = Gate()

    async def run(_command, _environment, _directory):
        await gate.wait()
        return "done"

    async with live_config(home, run_command=run) as live:
        async with trio.open_nursery() as asker:
            asker.start_soon(live.set, Scope.GLOBAL, "env", {"SLOW": "$(slow)", "X": "1"})
            await gate.reached()
            asker.cancel_scope.cancel()
        assert live.current.revision == 1
        assert json.loads(home.data_file.read_text())["env"]["X"] == "1"
        gate.open()
        loaded = await live.newer_than(1)
        assert loaded.env == {"SLOW": "done", "X": "1"}


async def test_whoever_still_waits_when_the_workspace_closes_is_told(home):
    gate = Gate()

    async def hang(_command, _environment, _directory):
        await gate.wait()

    told = []

    async def wait_for(call, *args):
        with pytest.raises(WorkspaceClosing):
            await call(*args)
        told.append(call.__name__)

    async with trio.open_nursery() as nursery:
        async with live_config(home, run_command=hang) as live:
            nursery.start_soon(wait_for, live.set, Scope.GLOBAL, "env.SLOW", "$(slow)")
            nursery.start_soon(wait_for, live.newer_than, 7)
            await gate.reached()
            nursery.start_soon(wait_for, live.remove, Scope.GLOBAL, "env.OTHER")
            await wait_all_tasks_blocked()
    assert sorted(told) == ["newer_than", "remove", "set"]
    with pytest.raises(WorkspaceClosing):
        await live.reload()


async def test_an_error_of_the_block_leaves_it_as_itself(home):
    with pytest.raises(KeyError):
        async with live_config(home):
            raise KeyError("mine")


# ── What is not done again ──────────────────────────────────────────────────────────────────────


async def test_the_commands_of_env_are_run_again_only_if_env_changes_or_on_reload(home):
    ran = []

    async def run(command, _environment, _directory):
        await trio.lowlevel.checkpoint()
        ran.append(command)
        if command == "fails":
            raise CommandFailed("exit status 1")
        return "x"

    home.write(home.user_file, {"env": {"A": "$(one)", "B": "$(fails)"}})
    async with live_config(home, run_command=run) as live:
        await live.set(Scope.GLOBAL, "options.debug", True)
        assert ran == ["one", "fails"]
        assert live.current.env == {"A": "x"}
        assert "exit status 1" in str(live.current.warnings[0]), "what failed is still said"
        await live.set(Scope.GLOBAL, "env.C", "c")
        assert ran == ["one", "fails"] * 2
        await live.reload()
        assert ran == ["one", "fails"] * 3


async def test_the_data_directory_stays_while_the_workspace_is_open(home):
    async with live_config(home) as live:
        await live.set(Scope.GLOBAL, "options.data_directory", "elsewhere")
        assert live.current.data_dir == home.project / ".crush"
        await live.set(Scope.WORKSPACE, "options.debug", True)
        assert home.own_file.exists()
    async with live_config(home) as live:
        assert live.current.data_dir == home.project / "elsewhere"
