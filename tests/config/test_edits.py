"""Changes to files: what they change, what they refuse, and what they leave alone."""

import fcntl
import json
import os
import stat

import pytest
import trio

from crush_trio.config import ConfigInvalid, ConfigLocked, ConfigNotWritten, load_config
from crush_trio.config.edits import (
    parse_key,
    remove_value,
    set_compact_mode,
    set_model,
    set_provider_key,
    set_value,
    trust_directory,
    write_change,
)
from crush_trio.errors import ProviderKeyInvalid
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.requests import ModelType, Scope
from tests.config.homes import CATALOGUE, SECRET, custom

TOKEN = {"access_token": SECRET, "expires_in": 1, "expires_at": 2}


async def apply(home, change):
    """Make a change as a workspace would that has just been opened."""
    loaded = await load_config(home.places(), catalogue=CATALOGUE)
    return await write_change(
        change,
        places=loaded.places,
        data_dir=loaded.pinned,
        config=loaded.config,
        catalogue=CATALOGUE,
    )


def content(path):
    return json.loads(path.read_text())


# ── Keys ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "way"),
    [
        ("debug", ("debug",)),
        ("options.tui.compact_mode", ("options", "tui", "compact_mode")),
        (r"providers.my\.own.api_key", ("providers", "my.own", "api_key")),
        (r"providers.a\\.b", ("providers", "a\\", "b")),
        ("$schema", ("$schema",)),
        ("env.A B", ("env", "A B")),
    ],
)
def test_a_key_is_names_with_dots_between_them(key, way):
    assert parse_key(key) == way


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "a\\"])
def test_anything_else_is_no_key(key):
    with pytest.raises(ConfigInvalid, match="key: expected names"):
        parse_key(key)


# ── What is changed ─────────────────────────────────────────────────────────────────────────────


async def test_each_scope_has_its_file(home):
    await apply(home, set_value(Scope.GLOBAL, "options.debug", True))
    await apply(home, set_value(Scope.WORKSPACE, "options.debug", False))
    assert content(home.data_file) == {"options": {"debug": True}}
    assert content(home.own_file) == {"options": {"debug": False}}
    assert not home.workspace_file.exists(), "nothing is written into the project"


async def test_what_we_do_not_understand_stays_where_it_is(home):
    before = {"zebra": {"x": [1, {"y": None}]}, "options": {"a": 1, "debug": False, "z": 2}}
    home.write(home.data_file, before)
    await apply(home, set_value(Scope.GLOBAL, "options.debug", True))
    after = {"zebra": {"x": [1, {"y": None}]}, "options": {"a": 1, "debug": True, "z": 2}}
    assert list(content(home.data_file).items()) == list(after.items())
    assert list(content(home.data_file)["options"]) == ["a", "debug", "z"]


async def test_the_file_is_the_users_alone_and_for_people_too(home):
    await apply(home, set_value(Scope.GLOBAL, "options.debug", True))
    assert stat.S_IMODE(home.data_file.stat().st_mode) == 0o600
    assert home.data_file.read_text() == '{\n  "options": {\n    "debug": true\n  }\n}\n'


async def test_a_value_can_be_removed(home):
    home.write(home.data_file, {"options": {"debug": True, "progress": False}})
    assert await apply(home, remove_value(Scope.GLOBAL, "options.debug")) is not None
    assert content(home.data_file) == {"options": {"progress": False}}


@pytest.mark.parametrize("key", ["options.debug", "nothing.at.all", "env.X.y"])
async def test_removing_what_is_not_there_changes_nothing(home, key):
    home.write(home.data_file, '{"options":{},"env":{"X":"1"}}')
    assert await apply(home, remove_value(Scope.GLOBAL, key)) is None
    assert home.data_file.read_text() == '{"options":{},"env":{"X":"1"}}', "not even its spaces"


async def test_setting_what_is_set_already_changes_nothing(home):
    home.write(home.data_file, '{"options":{"debug":true}}')
    assert await apply(home, set_value(Scope.GLOBAL, "options.debug", True)) is None
    assert home.data_file.read_text() == '{"options":{"debug":true}}'


async def test_compact_mode(home):
    await apply(home, set_compact_mode(Scope.WORKSPACE, True))
    assert content(home.own_file) == {"options": {"tui": {"compact_mode": True}}}


def selected(number, **more):
    return SelectedModel(provider="mine", model=f"m{number}", **more)


async def test_selecting_a_model_remembers_it_once_and_not_too_many(home):
    home.write(
        home.user_file,
        {"providers": {"mine": custom(models=[{"id": f"m{n}"} for n in range(9)])}},
    )
    for number in (1, 2, 3, 4, 5, 6, 3):
        await apply(home, set_model(Scope.GLOBAL, ModelType.LARGE, selected(number)))
    latest = set_model(Scope.GLOBAL, ModelType.LARGE, selected(3, max_tokens=9))
    await apply(home, latest)
    written = content(home.data_file)
    assert written["models"] == {"large": {"model": "m3", "provider": "mine", "max_tokens": 9}}
    recent = written["recent_models"]["large"]
    assert [each["model"] for each in recent] == ["m3", "m6", "m5", "m4", "m2"]
    assert recent[0]["max_tokens"] == 9


async def test_a_choice_for_the_workspace_remembers_those_of_the_user(home):
    home.write(home.user_file, {"providers": {"mine": custom()}})
    await apply(home, set_model(Scope.GLOBAL, ModelType.SMALL, selected(1)))
    await apply(home, set_model(Scope.WORKSPACE, ModelType.SMALL, selected(2)))
    recent = content(home.own_file)["recent_models"]["small"]
    assert [each["model"] for each in recent] == ["m2", "m1"]


async def test_a_key_and_a_token_take_each_others_place(home):
    await apply(home, set_provider_key(Scope.GLOBAL, "openai", "string", SECRET))
    assert content(home.data_file)["providers"] == {"openai": {"api_key": SECRET}}
    await apply(home, set_provider_key(Scope.GLOBAL, "openai", "oauth", TOKEN))
    assert content(home.data_file)["providers"] == {"openai": {"oauth": TOKEN}}
    await apply(home, set_provider_key(Scope.GLOBAL, "openai", "string", "k"))
    assert content(home.data_file)["providers"] == {"openai": {"api_key": "k"}}


@pytest.mark.parametrize(
    ("provider", "kind", "key"),
    [
        ("openai", "runes", "k"),
        ("openai", "string", TOKEN),
        ("openai", "oauth", SECRET),
        ("openai", "oauth", {"access_token": 5}),
        ("openai", "oauth", {}),
        ("", "string", "k"),
    ],
)
def test_a_key_that_is_not_of_its_kind_is_refused_and_not_repeated(provider, kind, key):
    with pytest.raises(ProviderKeyInvalid) as caught:
        set_provider_key(Scope.GLOBAL, provider, kind, key)
    assert SECRET not in str(caught.value)


async def test_a_directory_is_trusted_once(home):
    await apply(home, trust_directory(home.project))
    assert await apply(home, trust_directory(home.project)) is None
    await apply(home, trust_directory(home.home))
    trusted = [str(home.project), str(home.home)]
    assert content(home.data_file) == {"crush_trio": {"trusted_directories": trusted}}


# ── What is refused ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("options.debug", "yes", "options.debug: expected a boolean, got a string"),
        ("options", [], "options: expected an object, got a list"),
        ("options.debug.deeper", 1, "options.debug: expected an object, got a boolean"),
        ("recent_models.large", [{"model": 5}], "recent_models.large[0].model: expected a string"),
        ("providers.openai.limits", [1], "providers.openai.limits: expected an object, got a list"),
        ("mcp.x.type", "pigeon", "mcp.x.type: unknown value"),
        ("providers.openai.type", "abacus", "providers.openai.type: expected one of"),
        ("providers.mine.api_key", "k", "providers.mine.base_url: expected the address"),
    ],
)
async def test_a_value_that_would_be_refused_on_loading_is_not_written(home, key, value, complaint):
    home.write(home.data_file, {"options": {"debug": True}})
    before = home.data_file.read_bytes()
    with pytest.raises(ConfigInvalid) as caught:
        await apply(home, set_value(Scope.GLOBAL, key, value))
    assert caught.value.detail.startswith(f"{home.data_file}: {complaint}")
    assert home.data_file.read_bytes() == before


async def test_an_incomplete_provider_in_a_file_does_not_keep_other_values_from_being_written(home):
    home.write(home.data_file, {"providers": {"mine": {"api_key": "k"}}})
    await apply(home, set_value(Scope.GLOBAL, "options.debug", value=True))
    assert (await home.load()).config.options.debug


async def test_a_value_nested_too_deep_to_be_read_again_is_not_written(home):
    deep = {}
    for _ in range(200):
        deep = {"x": deep}
    with pytest.raises(ConfigInvalid, match="levels deep"):
        await apply(home, set_value(Scope.GLOBAL, "whatever", deep))
    assert not home.data_file.exists()


async def test_a_file_that_is_no_json_is_not_overwritten(home):
    loaded = await home.load()
    home.write(home.data_file, "{oops")
    with pytest.raises(ConfigInvalid, match="line 1"):
        await write_change(
            set_value(Scope.GLOBAL, "options.debug", True),
            places=loaded.places,
            data_dir=loaded.pinned,
            config=loaded.config,
        )
    assert home.data_file.read_text() == "{oops"


async def test_a_file_with_a_wrong_type_can_be_repaired(home):
    loaded = await home.load()
    home.write(home.data_file, {"options": {"debug": "yes"}})
    await write_change(
        set_value(Scope.GLOBAL, "options.debug", True),
        places=loaded.places,
        data_dir=loaded.pinned,
        config=loaded.config,
    )
    assert (await home.load()).config.options.debug is True


async def test_a_disk_that_refuses_is_reported(home):
    home.home.mkdir()
    home.write(home.home / ".local", "a file where a directory should be")
    with pytest.raises(ConfigNotWritten, match="Not a directory"):
        await apply(home, set_value(Scope.GLOBAL, "options.debug", True))


# ── The lock ────────────────────────────────────────────────────────────────────────────────────


def take_lock(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_name("crush.json.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


async def test_a_writer_waits_for_another_process(home):
    handle = take_lock(home.data_file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(apply, home, set_value(Scope.GLOBAL, "options.debug", True))
        await trio.sleep(1)
        assert not home.data_file.exists()
        os.close(handle)
    assert content(home.data_file) == {"options": {"debug": True}}


async def test_but_not_for_ever(home):
    handle = take_lock(home.data_file)
    try:
        with pytest.raises(ConfigLocked, match=r"crush\.json"):
            await apply(home, set_value(Scope.GLOBAL, "options.debug", True))
    finally:
        os.close(handle)
    assert not home.data_file.exists()


async def test_a_writer_that_waits_can_be_cancelled(home):
    loaded = await home.load()
    handle = take_lock(home.data_file)
    try:
        with trio.move_on_after(1) as scope:
            await write_change(
                set_value(Scope.GLOBAL, "options.debug", True),
                places=loaded.places,
                data_dir=loaded.pinned,
                config=loaded.config,
            )
        assert scope.cancelled_caught
    finally:
        os.close(handle)
    assert not home.data_file.exists()
