"""Contract I.1 and I.2: where configuration comes from, what it may say, and what becomes of it.

The parts have tests of their own in `tests/config/`; here they are seen from outside, as a workspace
sees them: files on a disk, a snapshot, a change.
"""

import json
import os
import stat

import pytest
import trio

from crush_trio.config import (
    ConfigInvalid,
    ConfigWarningKind,
    ExpansionFailed,
    load_config,
    open_live_config,
    shown_config,
)
from crush_trio.config.checks import PROVIDER_TYPES
from crush_trio.wire.codec import encode
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.requests import ModelType, Scope
from tests.config.homes import CATALOGUE, SECRET, Home, custom, texts


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


async def never(command, _environment, _directory):
    raise AssertionError(f"ran {command}")


# ── I1: sources ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I1")
async def test_later_sources_win_over_earlier_ones(home):
    sub = home.project / "sub"
    order = [
        home.system_file,
        home.user_file,
        home.data_file,
        home.project / "crush.json",
        home.project / ".crush.json",
        sub / "crush.json",
        sub / ".crush.json",
        sub / ".crush" / "crush.json",
        home.places(sub).workspace_file,
    ]
    sub.mkdir()
    for number, path in enumerate(order):
        home.write(path, {"options": {"notifications": f"n{number}"}})
        loaded = await home.load(sub)
        assert loaded.config.options.notifications == f"n{number}", path
    assert tuple(source.path for source in loaded.sources) == tuple(order)


@pytest.mark.item("I1")
@pytest.mark.parametrize("in_git", [True, False])
async def test_the_search_stops_at_the_work_tree_root_or_at_the_directory_itself(home, in_git):
    deep = home.project / "a" / "b"
    deep.mkdir(parents=True)
    if not in_git:
        (home.project / ".git").rmdir()
    for directory in (home.root, home.project, home.project / "a", deep):
        home.write(directory / "crush.json", {"env": {directory.name: "x"}})
    home.trust(home.root)
    loaded = await home.load(deep)
    assert loaded.env.keys() == ({"project", "a", "b"} if in_git else {"b"})


@pytest.mark.item("I1")
async def test_invalid_json_is_fatal_and_names_the_file(home):
    home.write(home.user_file, '{"env": ')
    with pytest.raises(ConfigInvalid, match=str(home.user_file)):
        await home.load()


@pytest.mark.item("I1")
async def test_a_script_is_never_run_and_always_reported(home):
    for path in (home.user_file.parent / "crushrc", home.project / "crushrc"):
        home.write(path, "provider x")
    loaded = await home.load(run_command=never)
    assert len(texts(loaded, ConfigWarningKind.SCRIPT_NOT_RUN)) == 2


# ── I2: the data directory ──────────────────────────────────────────────────────────────────────


@pytest.mark.item("I2")
async def test_the_data_directory_is_chosen_in_four_steps(home):
    sub = home.project / "sub"
    sub.mkdir()
    assert (await home.load(sub)).data_dir == sub / ".crush"
    (home.root / ".crush").mkdir()
    assert (await home.load(sub)).data_dir == sub / ".crush", "beyond the boundary"
    (home.project / ".crush").mkdir()
    assert (await home.load(sub)).data_dir == home.project / ".crush"
    home.write(home.user_file, {"options": {"data_directory": "configured"}})
    assert (await home.load(sub)).data_dir == sub / "configured"
    assert (await home.load(sub, data_dir="argued")).data_dir == sub / "argued"


# ── I3: writes ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I3")
async def test_a_write_goes_to_the_file_of_its_scope_and_is_read_back(home):
    async with open_live_config(home.places()) as live:
        await live.set(Scope.GLOBAL, "options.notifications", "bell")
        await live.set(Scope.WORKSPACE, "options.progress", False)
        assert live.current.config.options.notifications == "bell"
        assert live.current.config.options.progress is False
    assert not home.workspace_file.exists(), "nothing is written into the project"
    for path in (home.data_file, home.own_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.item("I3")
async def test_a_reader_in_between_sees_the_old_file_or_the_new_one(home):
    home.write(home.data_file, {"env": {"N": "old"}})
    async with open_live_config(home.places()) as live:
        with home.data_file.open() as reader:
            await live.set(Scope.GLOBAL, "env.N", "new")
            assert json.load(reader) == {"env": {"N": "old"}}
    assert json.loads(home.data_file.read_text()) == {"env": {"N": "new"}}
    assert [path.name for path in home.data_file.parent.iterdir() if "lock" not in path.name] == [
        "crush.json"
    ]


@pytest.mark.item("I3")
async def test_writers_of_one_process_are_served_in_order_and_lose_nothing(home):
    async with open_live_config(home.places()) as live, trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(live.set, Scope.GLOBAL, f"env.V{number}", str(number))
    assert live.current.env == {f"V{number}": str(number) for number in range(8)}
    assert live.current.revision == 9


@pytest.mark.item("I3")
async def test_a_snapshot_does_not_change(home):
    async with open_live_config(home.places()) as live:
        before = live.current
        seen = encode(before.config)
        await live.set(Scope.GLOBAL, "options.debug", True)
        assert live.current is not before
        assert encode(before.config) == seen


# ── I4: values that are expanded ────────────────────────────────────────────────────────────────


@pytest.mark.item("I4")
async def test_an_unset_variable_is_empty_and_an_empty_header_is_left_out(home):
    entry = custom(api_key="<$UNSET>", extra_headers={"a": "$UNSET", "b": "x"})
    home.write(home.user_file, {"providers": {"x": entry}})
    resolved = (await (await home.load()).resolve_provider("x")).config
    assert resolved.api_key == "<>"
    assert resolved.extra_headers == {"b": "x"}


@pytest.mark.item("I4")
@pytest.mark.parametrize("template", ["$", "a$", "${UNSET:?}", "$(false)"])
async def test_a_lone_dollar_sign_and_a_failed_substitution_are_errors(home, template):
    home.write(home.user_file, {"providers": {"x": custom(api_key=template)}})
    loaded = await home.load()
    with pytest.raises(ExpansionFailed, match=r"providers\.x\.api_key"):
        await loaded.resolve_provider("x")


@pytest.mark.item("I4")
async def test_the_body_of_a_request_is_never_expanded(home):
    home.write(home.user_file, {"providers": {"x": custom(extra_body={"a": "$(boom) $HOME $"})}})
    loaded = await home.load(run_command=never)
    resolved = (await loaded.resolve_provider("x")).config
    assert resolved.extra_body == {"a": "$(boom) $HOME $"}


@pytest.mark.item("I4")
async def test_an_error_shows_the_template_never_the_value_and_is_short(home):
    home.environment["TOKEN"] = SECRET
    template = f"{SECRET} $TOKEN \x1b[31m ${{MISSING:?{'x' * 2000}}}"
    home.write(home.user_file, {"providers": {"x": custom(api_key=template)}})
    loaded = await home.load()
    with pytest.raises(ExpansionFailed) as caught:
        await loaded.resolve_provider("x")
    text = str(caught.value)
    assert "${MISSING:?}" in text
    assert SECRET not in text
    assert text.isprintable()
    assert len(text.encode()) <= 512


@pytest.mark.item("I4")
async def test_a_command_is_run_on_the_users_word_only(home):
    ran = []

    async def run(command, _environment, _directory):
        await trio.lowlevel.checkpoint()
        ran.append(command)
        return "key\n"

    home.write(home.user_file, {"mcp": {"mine": {"command": "$(mine)"}}})
    home.write(home.project_file, {"mcp": {"theirs": {"command": "$(theirs)"}}})
    loaded = await home.load(run_command=run)
    assert (await loaded.resolve_mcp("mine")).config.command == "key"
    with pytest.raises(ExpansionFailed, match="crush-trio trust"):
        await loaded.resolve_mcp("theirs")
    assert ran == ["mine"]
    async with open_live_config(home.places(), run_command=run) as live:
        await live.trust(home.project)
        assert (await live.current.resolve_mcp("theirs")).config.command == "key"
    assert ran == ["mine", "theirs"]


# ── I5: keys ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I5")
async def test_every_top_level_key_is_known(home):
    home.write(
        home.user_file,
        {
            "models": {},
            "recent_models": {},
            "providers": {},
            "mcp": {},
            "lsp": {},
            "options": {
                "context_paths": [],
                "global_context_paths": [],
                "skills_paths": [],
                "disabled_skills": [],
                "disabled_tools": [],
                **dict.fromkeys(("disable_auto_summarize", "debug", "auto_lsp", "progress"), True),
                "data_directory": "",
                "attribution": {},
                "disable_default_providers": False,
                "disable_provider_auto_update": False,
                "initialize_as": "",
                "notifications": "",
            },
            "permissions": {"allowed_tools": []},
            "tools": {"ls": {}, "grep": {}, "glob": {}},
            "hooks": {},
            "env": {},
        },
    )
    assert texts(await home.load(), ConfigWarningKind.UNKNOWN_KEY) == []


@pytest.mark.item("I5")
async def test_no_more_than_five_recent_models_are_kept(home):
    models = [{"id": f"m{number}"} for number in range(7)]
    home.write(home.user_file, {"providers": {"mine": custom(models=models)}})
    async with open_live_config(home.places()) as live:
        for number in range(7):
            chosen = SelectedModel(provider="mine", model=f"m{number}")
            await live.set_model(Scope.GLOBAL, ModelType.LARGE, chosen)
        recent = live.current.config.recent_models["large"]
    assert [each.model for each in recent] == ["m6", "m5", "m4", "m3", "m2"]


# ── I6: context files ───────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I6")
async def test_context_files_are_the_known_ones_the_configured_ones_and_the_global_ones(home):
    for path in ("project/agents.md", "project/more.md", "home/global.md"):
        home.write(home.root / path, path)
    home.write(
        home.user_file,
        {
            "options": {
                "context_paths": ["AGENTS.md", "more.md"],
                "global_context_paths": ["~/global.md"],
            }
        },
    )
    loaded = await home.load()
    found = [each.text for each in await loaded.context_files()]
    assert found == ["project/agents.md", "project/more.md", "home/global.md"]
    home.write(home.project / "more.md", "changed")
    assert "changed" in [each.text for each in await loaded.context_files()], "read when needed"


# ── I.2: providers and models ───────────────────────────────────────────────────────────────────


@pytest.mark.item("I.2")
@pytest.mark.parametrize("type_", sorted(PROVIDER_TYPES))
async def test_a_provider_has_one_of_the_known_types(home, type_):
    home.write(home.user_file, {"providers": {"x": custom(type=type_)}})
    assert (await home.load()).config.providers["x"].type == type_


@pytest.mark.item("I.2")
async def test_a_provider_of_another_type_is_left_out_with_a_warning(home):
    home.write(home.user_file, {"providers": {"x": custom(type="telepathy"), "y": custom()}})
    loaded = await home.load()
    assert list(loaded.config.providers) == ["y"]
    [warning] = [each for each in loaded.warnings if each.key == "providers.x.type"]
    assert warning.text.startswith("expected one of")


@pytest.mark.item("I.2")
async def test_a_known_provider_is_enabled_by_its_key_and_can_be_overridden(home):
    assert "anthropic" not in (await home.load(catalogue=CATALOGUE)).config.providers
    home.environment["ANTHROPIC_API_KEY"] = "k"
    assert "anthropic" in (await home.load(catalogue=CATALOGUE)).config.providers
    home.write(home.user_file, {"providers": {"anthropic": {"base_url": "http://proxy"}}})
    loaded = await home.load(catalogue=CATALOGUE)
    assert (await loaded.resolve_provider("anthropic")).config.base_url == "http://proxy"


@pytest.mark.item("I.2")
async def test_an_invalid_selection_falls_back_and_says_so(home):
    home.environment["ANTHROPIC_API_KEY"] = "k"
    home.write(
        home.user_file,
        {
            "models": {
                "large": {"provider": "mine", "model": "gone"},
                "small": {"provider": "nobody", "model": "x"},
            },
            "providers": {"mine": custom()},
        },
    )
    loaded = await home.load(catalogue=CATALOGUE)
    assert loaded.large.selected.model == "m1"
    assert loaded.small == loaded.large
    assert len(texts(loaded, ConfigWarningKind.MODEL_REPLACED)) == 2


@pytest.mark.item("I.2")
async def test_a_model_of_a_built_in_provider_need_not_be_in_the_catalogue(home):
    home.environment["ANTHROPIC_API_KEY"] = "k"
    chosen = {"provider": "anthropic", "model": "newer", "max_tokens": 9}
    home.write(home.user_file, {"models": {"large": chosen}})
    loaded = await home.load(catalogue=CATALOGUE)
    assert (loaded.large.selected.model, loaded.large.selected.max_tokens) == ("newer", 9)
    assert loaded.small.selected.model == "a-small"
    listed = loaded.config.providers["anthropic"].models
    assert [model.id for model in listed] == ["a-small", "a-large", "newer"]
    [warning] = texts(loaded, ConfigWarningKind.MODEL_UNLISTED)
    assert warning.startswith("models.large: anthropic/newer is not in the catalogue")


# ── L21, L31: nothing of the process ────────────────────────────────────────────────────────────


@pytest.mark.item("L31")
async def test_the_environment_of_the_process_is_neither_read_nor_changed(home, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    home.write(home.user_file, {"env": {"FROM_CONFIG": "1"}})
    before = dict(os.environ)
    loaded = await home.load(catalogue=CATALOGUE)
    assert loaded.environment == {"FROM_CONFIG": "1"}
    assert list(loaded.config.providers) == ["demo"]
    assert dict(os.environ) == before


@pytest.mark.item("L21")
async def test_the_working_directory_of_the_process_does_not_matter(home, monkeypatch, tmp_path):
    home.write(home.user_file, {"options": {"data_directory": "data", "context_paths": ["n.md"]}})
    home.write(home.project / "n.md", "note")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    loaded = await load_config(home.places())
    assert loaded.data_dir == home.project / "data"
    assert [each.text for each in await loaded.context_files()] == ["note"]
    assert shown_config(loaded).options.data_directory == str(home.project / "data")
