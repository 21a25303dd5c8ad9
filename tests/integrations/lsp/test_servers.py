"""Which language servers a workspace has, for which files, and what may be started at all."""

import sys
from pathlib import PurePath

import pytest

from crush_trio.errors import LspNotFound
from crush_trio.integrations.lsp import servers as lsp_module
from crush_trio.integrations.lsp.known_servers import KNOWN, handles, has_root, language_of
from crush_trio.wire.integrations import LspState
from crush_trio.wire.requests import Scope
from tests.config.homes import Home
from tests.integrations.lsp_bench import Programs
from tests.integrations.lsp_workspace import TOY, lsp, open_place

# Configurations are read in threads, and the virtual clock does not see those.
pytestmark = [pytest.mark.real_clock, pytest.mark.item("I.4")]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def states(place):
    return {name: info.state for name, info in place.servers.states().items()}


# ── Which there are ─────────────────────────────────────────────────────────────────────────────


async def test_where_nothing_is_configured_there_is_nothing_and_nothing_is_imported(home):
    modules = [name for name in sys.modules if name.endswith(("lsp.server", "lsp.tools"))]
    saved = {name: sys.modules.pop(name) for name in modules}
    try:
        async with open_place(home) as place:
            assert place.servers.states() == {}
            assert place.tools() == {}
            assert await place.servers.changed(place.put("a.py", "x")) == ""
            assert await place.servers.viewed(place.root / "a.py") == ""
            await place.servers.start("a.py")
            await place.servers.stop()
            with pytest.raises(LspNotFound):
                place.servers.diagnostics("toy")
        assert "crush_trio.integrations.lsp.server" not in sys.modules
        assert "crush_trio.integrations.lsp.tools" not in sys.modules
    finally:
        sys.modules |= saved


async def test_servers_are_listed_before_they_run_and_disabled_ones_as_such(home):
    async with open_place(home, lsp(toy=TOY, off=TOY | {"disabled": True})) as place:
        assert states(place) == {"off": LspState.DISABLED, "toy": LspState.UNSTARTED}
        assert place.servers.diagnostics("toy") == {}
        assert place.programs.toys == []


async def test_a_server_starts_with_the_first_file_of_its_kind(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        await place.servers.viewed(place.put("a.py", "x"))
        assert place.programs.toys == []
        await place.servers.viewed(place.put("a.toy", "x"))
        assert states(place) == {"toy": LspState.READY}
        assert [event.state.name for event in place.events()][:2] == ["STARTING", "READY"]


async def test_files_outside_the_workspace_are_none_of_its_business(home, tmp_path):
    outside = tmp_path / "outside.toy"
    outside.write_text("BAD")
    async with open_place(home, lsp(toy=TOY)) as place:
        (place.root / "link.toy").symlink_to(outside)
        inside = place.put("real.toy", "BAD")
        (place.root / "alias.toy").symlink_to(inside)
        for name in ("../outside.toy", "link.toy", ".crush/x.toy"):
            await place.servers.start(name)
            await place.servers.viewed((place.root / name).resolve())
        assert place.programs.toys == []
        assert "BAD is bad" in await place.said("view", file_path="alias.toy")
        assert list(place.servers.diagnostics("toy")) == [inside.as_uri()]


async def test_a_root_marker_must_exist(home):
    config = lsp(toy=TOY | {"root_markers": ["toy.mod", "*.toyproj"]})
    async with open_place(home, config) as place:
        file = place.put("a.toy", "x")
        await place.servers.changed(file)
        assert (place.programs.toys, states(place)) == ([], {"toy": LspState.UNSTARTED})
        place.put("my.toyproj")
        await place.servers.changed(file)
        assert place.programs.toys == []  # it is not looked for all the time
        place.servers._looked_at.clear()
        await place.servers.changed(file)
        assert states(place) == {"toy": LspState.READY}


def test_markers_are_names_patterns_or_paths(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.mod").touch()
    assert has_root(tmp_path, ["sub/x.mod"])
    assert has_root(tmp_path, ["nothing", "s?b"])
    assert has_root(tmp_path, [])
    assert not has_root(tmp_path, ["x.mod", "**/x.mod"])
    assert not has_root(tmp_path / "missing", ["x"])


# ── What may be started ─────────────────────────────────────────────────────────────────────────


async def test_a_command_of_a_project_that_is_not_trusted_is_never_started(home):
    home.write(home.project_file, lsp(toy=TOY))
    async with open_place(home) as place:
        file = place.put("a.toy", "BAD")
        assert await place.servers.changed(file) == ""
        await place.servers.start("a.toy")
        assert place.programs.toys == []
        info = place.servers.states()["toy"]
        assert info.state is LspState.DISABLED
        assert info.error.startswith("not started, because the file came with the project")
        assert place.tools() == {}


@pytest.mark.parametrize(
    "said", [{"args": ["--evil"]}, {"env": {"A": "b"}}, {"command": "/bin/sh"}]
)
async def test_nor_is_one_of_the_user_in_which_such_a_project_has_a_say(home, said):
    home.write(home.project_file, lsp(toy=said))
    async with open_place(home, lsp(toy=TOY)) as place:
        await place.servers.changed(place.put("a.toy", "BAD"))
        assert (place.programs.toys, states(place)) == ([], {"toy": LspState.DISABLED})


async def test_a_project_that_is_trusted_has_its_servers_until_it_is_not(home):
    home.trust()
    home.write(home.project_file, lsp(toy=TOY))
    async with open_place(home) as place:
        assert "BAD is bad" in await place.servers.changed(place.put("a.toy", "BAD"))
        home.write(home.system_file, {})
        await place.live.reload()
        await place.programs.news.until(
            lambda: place.programs.running == 0
        )  # without anybody queries for it
        assert states(place) == {"toy": LspState.DISABLED}


async def test_a_program_that_came_with_the_project_needs_trust_too(home):
    config = lsp(toy=TOY | {"command": "bin/server"})
    async with open_place(home, config) as place:
        place.put("bin/server")
        await place.servers.changed(place.put("a.toy", "BAD"))
        assert "which is not trusted" in place.servers.states()["toy"].error
    home.trust()
    async with open_place(home, config) as place:
        assert "BAD is bad" in await place.servers.changed(place.root / "a.toy")


async def test_a_program_that_is_not_there_is_an_error_that_passes(home):
    async with open_place(home, lsp(toy=TOY | {"command": "no-such-program"})) as place:
        file = place.put("a.toy", "BAD")
        said = await place.servers.changed(file)
        assert "toy is not available (no-such-program was not found)." in said
        info = place.servers.states()["toy"]
        assert (info.state, info.error) == (LspState.ERROR, "no-such-program was not found")
        server = place.servers.named("toy")
        server._failed_at -= 31
        place.servers.named("toy").ensure_started()
        assert server.state is LspState.STARTING


async def test_secrets_are_not_told(home):
    home.environment["MY_TOKEN"] = "tok-secret-value"
    config = lsp(toy=TOY | {"env": {"PLAIN": "${MY_TOKEN}"}, "args": ["--crash-on-open"]})
    programs = Programs(words="I know tok-secret-value")
    async with open_place(home, config, programs=programs) as place:
        await place.servers.changed(place.put("a.toy", "x"))
        await place.programs.news.until(lambda: states(place)["toy"] is LspState.ERROR)
        assert place.servers.states()["toy"].error == "it has ended: I know [redacted]"
        assert "tok-secret" not in repr(place.facts)


# ── Servers that nobody configured ──────────────────────────────────────────────────────────────


@pytest.fixture
def installed(home, tmp_path):
    """Install programs of well-known servers."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("gopls", "pyright-langserver"):
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    home.environment["PATH"] = f"relative:{directory}"


@pytest.mark.item("H3")
async def test_known_servers_start_by_themselves_where_the_project_is_trusted(home, installed):
    home.trust()
    (home.project / "pyproject.toml").touch()
    async with open_place(home) as place:
        assert states(place) == {"pyright": LspState.UNSTARTED}
        assert "lsp_rename" in place.tools()
        await place.servers.viewed(place.put("a.py", "BAD"))
        assert states(place) == {"pyright": LspState.READY}
        assert place.programs.toy.flags == ("--stdio",)


@pytest.mark.item("H3")
@pytest.mark.parametrize("option", [False, None], ids=["auto_lsp false", "not trusted"])
async def test_and_nowhere_else(home, installed, option):
    config = {} if option is None else {"options": {"auto_lsp": option}}
    home.trust(home.project if option is False else home.project / "below")
    (home.project / "pyproject.toml").touch()
    async with open_place(home, config) as place:
        await place.servers.changed(place.put("a.py", "BAD"))
        assert (place.servers.states(), place.tools(), place.programs.toys) == ({}, {}, [])


async def test_what_is_configured_takes_the_place_of_what_is_known(home, installed):
    home.trust()
    for name in ("pyproject.toml", "go.mod"):
        (home.project / name).touch()
    config = lsp(pyright={"disabled": True}, mine={"command": "gopls", "filetypes": ["go"]})
    async with open_place(home, config) as place:
        assert states(place) == {"mine": LspState.UNSTARTED, "pyright": LspState.DISABLED}


async def test_a_known_server_needs_nothing_but_its_name(home, installed):
    (home.project / "go.mod").touch()
    async with open_place(home, lsp(gopls={})) as place:
        assert await place.servers.changed(place.put("a.py", "BAD")) == ""
        assert "BAD is bad" in await place.servers.changed(place.put("a.go", "BAD"))


async def test_a_project_that_becomes_one_of_a_kind_is_noticed(home, installed, monkeypatch):
    monkeypatch.setattr(lsp_module, "RECHECK_PAUSE", 0.0)
    home.trust()
    async with open_place(home) as place:
        file = place.put("a.go", "BAD")
        assert await place.servers.changed(file) == ""
        place.put("go.mod")
        assert "BAD is bad" in await place.servers.changed(file)


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_no_known_server_is_a_program_that_runs_what_the_project_says(known):
    for argv in known.programs:
        assert argv[0] not in {
            "node",
            "npx",
            "python",
            "python3",
            "uv",
            "uvx",
            "java",
            "bundle",
            "sh",
        }
        assert "/" not in argv[0]
    assert known.root_markers
    assert known.filetypes


@pytest.mark.parametrize(
    ("filetypes", "name", "expected"),
    [
        (("py",), "a.py", True),
        ((".py",), "A.PY", True),
        (("python",), "a.pyi", True),
        (("py",), "a.pyx", False),
        (("d.ts",), "a.d.ts", True),
        (("dockerfile",), "Dockerfile", True),
        ((), "anything", True),
    ],
)
def test_file_types_are_endings_or_languages(filetypes, name, expected):
    assert handles(filetypes, PurePath(name)) is expected


def test_every_file_is_in_some_language():
    names = {"a.rs": "rust", "a.go": "go", "a.h": "c", "x": "plaintext", "a.tsx": "typescriptreact"}
    assert {name: language_of(PurePath(name)) for name in names} == names


# ── Changes of the configuration, and the end ───────────────────────────────────────────────────


async def test_what_is_unchanged_goes_on_when_the_configuration_changes(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        await place.servers.changed(place.put("a.toy", "BAD"))
        await place.live.set(Scope.GLOBAL, "lsp.other", TOY | {"filetypes": ["other"]})
        assert states(place) == {"other": LspState.UNSTARTED, "toy": LspState.READY}
        await place.live.set(Scope.GLOBAL, "lsp.toy.timeout", 7)
        assert states(place)["toy"] is LspState.UNSTARTED
        await place.programs.news.until(lambda: place.programs.running == 0)
        await place.live.set(Scope.GLOBAL, "lsp.toy", None)
        assert list(states(place)) == ["other"]


async def test_closing_stops_them_and_starts_no_more(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        await place.servers.changed(place.put("a.toy", "BAD"))
        assert place.programs.running == 1
        place.servers.close()
        await place.servers.start("a.toy")
        assert place.servers.states() == {}
    assert place.programs.running == 0
    assert [method for method, _ in place.programs.toy.updates][-2:] == ["shutdown", "exit"]
    assert len(place.programs.toys) == 1


async def test_clients_can_stop_them_and_start_them_again(home):
    async with open_place(home, lsp(toy=TOY)) as place:
        file = place.put("a.toy", "BAD")
        await place.servers.changed(file)
        await place.servers.stop()
        assert (place.programs.running, states(place)) == (0, {"toy": LspState.STOPPED})
        assert await place.servers.changed(file) == ""
        await place.servers.start("a.toy")
        await place.programs.news.until(lambda: states(place)["toy"] is LspState.READY)
        for nonsense in ("", "\0", "x" * 5000):
            await place.servers.start(nonsense)
