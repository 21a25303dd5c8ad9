"""`CommandSandbox` and `MachineSandbox`: what commands may touch, and finding the sandbox once."""

from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import evolve

from crush_trio.config.files import CommandPolicy, SandboxConfig, SandboxMode, SandboxNetwork
from crush_trio.config.load import load_config
from crush_trio.config.sources import Places
from crush_trio.testing.server.config import open_fixed_config
from crush_trio.tools.sandbox.confinement import Network, NotConfined, SandboxKind
from crush_trio.tools.sandbox.machine import Approval, MachineSandbox, no_sandbox
from crush_trio.tools.sandbox.settings import NOT_AVAILABLE, CommandSandbox
from crush_trio.tools.shell.process import Command

COMMAND = Command(argv=("server",), working_dir=Path("/"), env={})
HOLDS = SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK


@pytest.fixture
def place(tmp_path):
    """A machine outside of /tmp's rules: a home directory and a project, both resolved."""
    root = tmp_path.resolve()
    for name in ("home/.ssh", "home/.config/crush", "home/.cache", "project/.git/hooks", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "project" / ".git" / "config").touch()
    return root


@asynccontextmanager
async def sandboxed(place, kind=SandboxKind.BUBBLEWRAP, directory="project", **config):
    environment = {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp")}
    places = Places(directory=place / directory, home=place / "home", environment=environment)
    async with open_fixed_config(places) as live:
        live.current = evolve(await load_config(places), sandbox=SandboxConfig(**config))
        yield CommandSandbox(live=live, machine=MachineSandbox(kind))


# ── What commands may touch ─────────────────────────────────────────────────────────────────────


async def test_an_approved_command_may_write_the_workspace_and_caches_but_not_what_runs_later(
    place,
):
    async with sandboxed(place) as sandbox:
        allowed = sandbox.for_approved()
    home, project = place / "home", place / "project"
    assert {project, place / "tmp", home / ".cache", Path("/tmp")} <= {*allowed.writable}
    assert home not in allowed.writable
    git = project / ".git"
    assert {git / "config", git / "hooks"} <= {*allowed.protected}
    assert {home / ".ssh", home / ".config" / "crush"} <= {*allowed.hidden}
    assert allowed.network is Network.ON


async def test_configuration_that_would_count_at_once_cannot_be_made_and_other_names_are_watched(
    place,
):
    project = place / "project"
    async with sandboxed(place) as sandbox:
        untrusted = sandbox.for_approved()
        sandbox.live.current = evolve(sandbox.live.current, trusted=(project,))
        trusted = sandbox.for_approved()
    names = {project / "crush.json", project / ".crush.json"}
    assert names <= {*untrusted.watched} - {*untrusted.protected}
    assert names <= {*trusted.protected} - {*trusted.watched}
    assert project / ".git" / "commondir" in trusted.watched


async def test_an_unasked_command_may_write_nothing_and_has_no_network(place):
    (place / "project" / ".crush").mkdir()
    async with sandboxed(place, network=SandboxNetwork.ON, writable=("/srv",)) as sandbox:
        allowed = sandbox.for_unasked()
    assert (allowed.writable, allowed.network) == ((), Network.OFF)
    assert {place / "home" / ".ssh", place / "project" / ".crush"} <= {*allowed.hidden}


async def test_the_user_adds_writable_and_hidden_paths_and_can_show_a_private_one(place):
    for name in ("home/build", "home/.aws/cli", "keys"):
        (place / name).mkdir(parents=True)
    config = {"writable": ("~/build", "~/.aws"), "hidden": (str(place / "keys"),)}
    async with sandboxed(place, network=SandboxNetwork.LOOPBACK, **config) as sandbox:
        allowed = sandbox.for_approved()
    assert {place / "home" / "build", place / "home" / ".aws"} <= {*allowed.writable}
    assert place / "home" / ".aws" not in allowed.hidden
    assert place / "keys" in allowed.hidden
    assert allowed.network is Network.LOOPBACK


@pytest.mark.parametrize("directory", ["home/.ssh", "home/.config/crush", "home"])
async def test_the_workspace_itself_is_never_hidden(place, directory):
    async with sandboxed(place, directory=directory) as sandbox:
        for allowed in (sandbox.for_approved(), sandbox.for_unasked()):
            workspace = place / directory
            assert not any(workspace.is_relative_to(path) for path in allowed.hidden)
        assert workspace in sandbox.for_approved().writable


async def test_start_up_files_are_protected_where_the_home_directory_is_the_workspace(place):
    (place / "home" / ".bashrc").touch()
    async with sandboxed(place, directory="home") as sandbox:
        allowed = sandbox.for_approved()
    assert place / "home" / ".bashrc" in allowed.protected
    assert place / "home" / ".ssh" in allowed.hidden


async def test_the_configuration_of_the_user_cannot_be_made_where_the_home_directory_is_writable(
    place,
):
    own = place / "home" / ".local" / "share" / "crush"
    async with sandboxed(place, directory="home") as sandbox:
        assert own in sandbox.confine(Approval.APPROVED).hidden
    assert own.stat().st_mode & 0o777 == 0o700


async def test_a_directory_that_another_command_had_made_meanwhile_is_not_called_made_by_this_one(
    place, monkeypatch
):
    own = place / "home" / ".local" / "share" / "crush"
    look = CommandSandbox.for_approved

    def look_and_lose(sandbox):
        found = look(sandbox)
        own.mkdir(parents=True, exist_ok=True)  # by another command, in another thread
        return found

    monkeypatch.setattr(CommandSandbox, "for_approved", look_and_lose)
    async with sandboxed(place, directory="home") as sandbox:
        confinement = sandbox.confine(Approval.APPROVED)
    assert own in confinement.hidden
    assert own not in confinement.watched


async def test_what_landlock_cannot_enforce_is_left_out_and_named(place):
    async with sandboxed(place, SandboxKind.LANDLOCK) as sandbox:
        assert sandbox.for_approved().protected == ()
        assert any(".git/config is not protected" in each for each in sandbox.losses())
        (place / "project" / ".crush").mkdir()
        hidden = sandbox.for_unasked().hidden
    assert not any(path.is_relative_to(place / "project") for path in hidden)


# ── Modes ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", SandboxMode)
@pytest.mark.parametrize("kind", SandboxKind)
async def test_the_mode_decides_whether_commands_are_held_and_whether_they_run(place, kind, mode):
    async with sandboxed(place, kind, mode=mode, commands=CommandPolicy.ALLOW) as sandbox:
        held = mode is not SandboxMode.OFF and kind in HOLDS
        assert sandbox.kind is (kind if held else SandboxKind.NONE)
        assert (sandbox.for_approved() is not None) is held
        assert (sandbox.confine(Approval.UNASKED) is not None) is held
        assert sandbox.confine(Approval.OUTSIDE) is None
        assert sandbox.allows is held
        refused = mode is SandboxMode.REQUIRE and kind is SandboxKind.NONE
        assert sandbox.refusal == (NOT_AVAILABLE if refused else "")


async def test_without_a_configuration_there_is_no_sandbox():
    sandbox = CommandSandbox()
    await sandbox.ready()
    assert (sandbox.kind, sandbox.for_approved(), sandbox.refusal) == (SandboxKind.NONE, None, "")


async def test_a_server_that_is_to_be_held_gets_what_approved_commands_get(place):
    async with sandboxed(place) as sandbox:
        held = await sandbox.held(COMMAND)
        assert held.held_by is SandboxKind.BUBBLEWRAP
        assert held.confinement == sandbox.for_approved()


async def test_a_server_starts_without_a_sandbox_unless_one_is_required(place, caplog):
    async with sandboxed(place, SandboxKind.NONE) as sandbox:
        assert (await sandbox.held(COMMAND)).held_by is SandboxKind.NONE
    assert [record.message for record in caplog.records] == ["sandbox.none"]
    async with sandboxed(place, SandboxKind.NONE, mode=SandboxMode.REQUIRE) as sandbox:
        with pytest.raises(NotConfined, match="install bubblewrap"):
            await sandbox.held(COMMAND)


# ── Finding it ──────────────────────────────────────────────────────────────────────────────────


class Search:
    """Finds Landlock when the test lets it, and counts how often it was asked."""

    def __init__(self):
        self.asked = 0
        self.go_on = trio.Event()

    async def __call__(self):
        self.asked += 1
        await self.go_on.wait()
        return SandboxKind.LANDLOCK


async def test_the_sandbox_is_looked_for_once_however_many_ask():
    search, answers = Search(), []
    machine = MachineSandbox(look=search)

    async def ask():
        answers.append(await machine.find())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert machine.found is None
        search.go_on.set()
    answers.append(await machine.find())
    assert (answers, search.asked) == ([SandboxKind.LANDLOCK] * 4, 1)


async def test_a_cancelled_search_is_begun_again():
    search = Search()
    machine = MachineSandbox(look=search)
    with trio.move_on_after(1):
        await machine.find()
    search.go_on.set()
    assert await machine.find() is SandboxKind.LANDLOCK
    assert search.asked == 2


async def test_nothing_is_tried_where_the_sandbox_is_off_or_known(place):
    search = Search()
    async with sandboxed(place, mode=SandboxMode.OFF) as sandbox:
        sandbox.machine = MachineSandbox(look=search)
        await sandbox.ready()
    await no_sandbox().find()
    assert search.asked == 0
