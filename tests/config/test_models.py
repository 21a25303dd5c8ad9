"""The large and the small model, and what takes their place."""

import pytest

from crush_trio.config import DEMO_CHOICE, DEMO_MODEL, ConfigWarningKind
from crush_trio.config.models import EnabledProvider, ModelSlot, reasoning_effort, select_models
from crush_trio.wire.config import CatalogModel, ProviderConfig, SelectedModel
from crush_trio.wire.requests import ModelType
from tests.config.homes import CATALOGUE, MODEL_A, MODEL_B, custom, texts


def provider(name, *models, large="", small="", **more):
    config = ProviderConfig(id=name, models=tuple(CatalogModel(id=m) for m in models), **more)
    return EnabledProvider(config=config, default_large=large, default_small=small)


PROVIDERS = {
    "p": provider("p", "p1", "p2", "p3", large="p2", small="p3"),
    "q": provider("q", "q1", "q2"),
}


def pick(large=None, small=None, providers=PROVIDERS):
    wanted = {"large": large, "small": small}
    chosen = {
        slot: SelectedModel(provider=name.split("/")[0], model=name.split("/")[1])
        for slot, name in wanted.items()
        if name
    }
    found = select_models(chosen, providers)
    names = [f"{s.selected.provider}/{s.selected.model}" for s in (found.large, found.small)]
    return *names, [warning.key for warning in found.warnings]


@pytest.mark.parametrize(
    ("large", "small", "outcome"),
    [
        (None, None, ("p/p2", "p/p3", [])),
        ("p/p1", "q/q2", ("p/p1", "q/q2", [])),
        ("q/q2", None, ("q/q2", "q/q2", [])),
        ("q/nothing", None, ("q/q1", "q/q1", ["models.large"])),
        ("p/nothing", "p/nothing", ("p/p2", "p/p3", ["models.large", "models.small"])),
        ("nobody/x", None, ("p/p2", "p/p3", ["models.large"])),
        ("q/q2", "nobody/x", ("q/q2", "q/q2", ["models.small"])),
        ("p/p1", "q/nothing", ("p/p1", "q/q1", ["models.small"])),
    ],
)
def test_a_selection_is_honoured_or_replaced(large, small, outcome):
    assert pick(large, small) == outcome


def test_the_notice_says_what_is_used_instead():
    wanted = {"large": SelectedModel(provider="nobody", model="x")}
    [warning] = select_models(wanted, PROVIDERS).warnings
    assert warning.kind is ConfigWarningKind.MODEL_REPLACED
    assert str(warning) == "models.large: nobody/x is not available; p/p2 is used instead"


def test_where_models_are_found_out_later_any_name_may_be_one():
    providers = {"d": provider("d", discover_models=True)}
    large, small, warnings = pick("d/new", providers=providers)
    assert (large, small, warnings) == ("d/new", "d/new", [])


async def test_with_nothing_to_use_the_demo_is_and_a_notice_says_how_to_go_on(home):
    loaded = await home.load(catalogue=CATALOGUE)
    assert loaded.large == loaded.small == ModelSlot(selected=DEMO_CHOICE, model=DEMO_MODEL)
    assert loaded.config.providers["demo"].type == "openai-compat"
    [warning] = texts(loaded, ConfigWarningKind.DEMO)
    assert "OPENAI_API_KEY" in warning
    assert "crush.json" in warning


async def test_a_provider_without_any_known_model_is_not_enough(home):
    home.environment["DEEPSEEK_API_KEY"] = "k"
    loaded = await home.load(catalogue=CATALOGUE)
    assert list(loaded.config.providers) == ["deepseek", "demo"]
    assert loaded.large.selected == DEMO_CHOICE
    assert "no model of deepseek is known" in texts(loaded, ConfigWarningKind.DEMO)[0]
    home.write(
        home.user_file, {"models": {"large": {"provider": "deepseek", "model": "deepseek-chat"}}}
    )
    loaded = await home.load(catalogue=CATALOGUE)
    assert list(loaded.config.providers) == ["deepseek"]
    assert loaded.large.model == CatalogModel(id="deepseek-chat", name="deepseek-chat")


async def test_a_default_comes_with_the_settings_of_the_catalogue(home):
    home.environment["ANTHROPIC_API_KEY"] = "k"
    loaded = await home.load(catalogue=CATALOGUE)
    assert loaded.large.model == MODEL_A
    assert loaded.large.selected == SelectedModel(
        provider="anthropic", model="a-large", max_tokens=4096
    )
    assert loaded.small.selected == SelectedModel(
        provider="anthropic", model="a-small", max_tokens=512, reasoning_effort="high"
    )
    assert loaded.config.models == {
        "large": loaded.large.selected,
        "small": loaded.small.selected,
    }
    assert loaded.slot(ModelType.SMALL).model == MODEL_B
    assert loaded.slot(ModelType.LARGE).model == MODEL_A


async def test_the_small_model_that_goes_with_a_provider(home):
    home.environment["ANTHROPIC_API_KEY"] = "k"
    home.write(
        home.user_file,
        {
            "providers": {"mine": custom()},
            "models": {"large": {"provider": "mine", "model": "m2"}},
        },
    )
    loaded = await home.load(catalogue=CATALOGUE)
    small = loaded.default_small_model("anthropic")
    assert (small.model, small.max_tokens, small.reasoning_effort) == ("a-small", 512, "high")
    assert loaded.default_small_model("mine") == loaded.large.selected
    assert loaded.default_small_model("nobody") == loaded.large.selected


REASONER = CatalogModel(id="r", can_reason=True, reasoning_levels=("low", "mid", "high"))


@pytest.mark.parametrize(
    ("wanted", "default", "effort"),
    [
        ("high", "mid", "high"),
        ("extreme", "mid", "mid"),
        ("", "mid", "mid"),
        ("", "", "low"),
        ("", "odd", "low"),
    ],
)
def test_the_reasoning_effort_is_one_that_the_model_has(wanted, default, effort):
    model = CatalogModel(
        id="r",
        can_reason=True,
        reasoning_levels=("low", "mid", "high"),
        default_reasoning_effort=default,
    )
    assert reasoning_effort(wanted, model) == effort


def test_a_model_that_cannot_reason_has_no_effort():
    assert reasoning_effort("high", CatalogModel(id="m", reasoning_levels=("high",))) == ""
    assert reasoning_effort("high", CatalogModel(id="m", can_reason=True)) == ""
