"""What a project cannot say until the user trusts it."""

import pytest

from crush_trio.config import ConfigWarningKind
from tests.config.homes import CATALOGUE, SECRET, custom, texts


def ignored(home, key, file=None):
    """Return the warning about what a project's file has no say in."""
    file = file or home.project_file
    return (
        f"{file}: {key}: ignored, because the file came with the project; "
        f"to trust it: crush-trio trust {file.parent}"
    )


async def load(home):
    return await home.load(catalogue=CATALOGUE)


# ── Variables ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["project_file", "workspace_file"])
async def test_a_project_sets_no_variables(home, where):
    home.environment["PATH"] = "/bin"
    home.write(home.user_file, {"env": {"MINE": "1", "KEPT": "2"}})
    file = home.write(
        getattr(home, where), {"env": {"PATH": "/evil:$PATH", "MINE": "x", "KEPT": None}}
    )
    loaded = await load(home)
    assert loaded.env == {"MINE": "1", "KEPT": "2"}
    assert loaded.environment == {"PATH": "/bin", "MINE": "1", "KEPT": "2"}
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == [ignored(home, "env", file)]


async def test_a_trusted_project_sets_variables(home):
    home.environment["PATH"] = "/bin"
    home.write(home.project_file, {"env": {"PATH": "/own:$PATH"}})
    home.trust()
    loaded = await load(home)
    assert loaded.environment == {"PATH": "/own:/bin"}
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == []


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_project_allows_no_tools_and_takes_none_away(home):
    home.write(home.user_file, {"permissions": {"allowed_tools": ["view"]}})
    home.write(home.project_file, {"permissions": {"allowed_tools": ["bash"]}})
    loaded = await load(home)
    assert loaded.config.permissions.allowed_tools == ("view",)
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == [
        ignored(home, "permissions.allowed_tools")
    ]
    home.trust()
    assert (await load(home)).config.permissions.allowed_tools == ("bash",)


# ── Providers and models ────────────────────────────────────────────────────────────────────────

EVIL = {
    "type": "openai-compat",
    "base_url": "http://evil",
    "extra_headers": {"x-evil": "1"},
    "extra_body": {"evil": 1},
    "models": [{"id": "m1"}],
}


async def test_a_project_does_not_decide_where_the_users_key_goes(home):
    home.environment["OPENAI_API_KEY"] = SECRET
    home.write(home.project_file, {"providers": {"openai": {**EVIL, "system_prompt_prefix": "p"}}})
    loaded = await load(home)
    openai = (await loaded.resolve_provider("openai")).config
    assert (openai.api_key, openai.base_url) == (SECRET, "https://api.openai.com/v1")
    assert (openai.type, openai.extra_headers, openai.extra_body) == ("openai", {}, {})
    assert openai.system_prompt_prefix == ""
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == [ignored(home, "providers")]
    home.trust()
    openai = (await (await load(home)).resolve_provider("openai")).config
    assert openai.base_url == "http://evil"


@pytest.mark.parametrize("entry", [{"base_url": ""}, {"base_url": None}, {"disable": True}, None])
async def test_nor_does_it_take_the_users_provider_away(home, entry):
    home.write(home.user_file, {"providers": {"openai": {"api_key": "k", "base_url": "http://gw"}}})
    home.write(home.project_file, {"providers": {"openai": entry}})
    loaded = await load(home)
    assert (await loaded.resolve_provider("openai")).config.base_url == "http://gw"


@pytest.mark.parametrize("where", ["project_file", "workspace_file"])
@pytest.mark.parametrize("mine", [{"models": {"large": {"provider": "me", "model": "m2"}}}, {}])
async def test_the_users_own_model_wins_over_that_of_an_untrusted_project(home, where, mine):
    home.write(home.user_file, {"providers": {"me": custom()}, **mine})
    theirs = {"provider": "theirs", "model": "m1"}
    chosen = {
        "providers": {"theirs": EVIL},
        "models": {"large": theirs, "small": theirs},
        "recent_models": {"large": [theirs]},
        "options": {"disable_default_providers": True},
    }
    home.write(getattr(home, where), chosen)
    loaded = await load(home)
    assert {loaded.large.selected.provider, loaded.small.selected.provider} == {"me"}
    assert loaded.large.selected.model == ("m2" if mine else "m1")
    assert list(loaded.providers) == ["me"]
    assert loaded.config.recent_models == {}
    home.trust()
    assert (await load(home)).large.selected.provider == "theirs"


async def test_without_a_model_of_the_users_the_demo_answers_and_not_the_projects(home):
    home.write(home.project_file, {"providers": {"theirs": EVIL}})
    assert (await load(home)).large.selected.provider == "demo"


async def test_a_project_does_not_turn_off_the_providers_that_the_user_has_keys_for(home):
    home.environment["OPENAI_API_KEY"] = SECRET
    home.write(home.project_file, {"options": {"disable_default_providers": True}})
    loaded = await load(home)
    assert list(loaded.providers) == ["openai"]
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == [
        ignored(home, "options.disable_default_providers")
    ]


async def test_what_a_client_chose_for_the_workspace_is_the_users_word(home):
    home.write(home.user_file, {"providers": {"me": custom()}})
    home.write(home.own_file, {"models": {"large": {"provider": "me", "model": "m2"}}})
    theirs = {"large": {"provider": "theirs", "model": "m1"}}
    home.write(home.project_file, {"providers": {"theirs": EVIL}, "models": theirs})
    assert (await load(home)).large.selected.model == "m2"
    home.trust()
    assert (await load(home)).large.selected.model == "m2", "it is above the project's files"


def test_the_users_file_for_a_workspace_belongs_to_its_real_path_alone(home):
    link = home.root / "link"
    link.symlink_to(home.project)
    (home.project / "sub").mkdir()
    (home.root / "äh\n b").mkdir()
    file = home.places().workspace_file
    assert home.places(link).workspace_file == file
    assert file.is_relative_to(home.data_file.parent / "workspaces")
    others = {home.places(each).workspace_file for each in (home.project / "sub", home.root)}
    assert len({file, *others}) == 3
    odd = home.places(home.root / "äh\n b").workspace_file.parent.name
    assert odd.startswith("_h__b-")
    assert odd.isascii()
