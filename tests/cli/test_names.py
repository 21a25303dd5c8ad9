"""Which session, run or model is meant."""

import pytest

from crush_trio.cli.commands.run import join_prompt
from crush_trio.cli.exits import IdAmbiguous, ModelUnknown
from crush_trio.cli.names import find_model, find_run, match_id
from crush_trio.wire.config import CatalogModel, ProviderConfig, SelectedModel
from crush_trio.wire.runs import RunState, RunView

IDS = ["abcd-1", "abcd-2", "xyz9-3"]


@pytest.mark.parametrize(
    ("text", "found"),
    [("abcd-1", "abcd-1"), ("xyz9", "xyz9-3"), ("xyz", None), ("zzzz", None), ("", None)],
)
def test_an_id_may_be_shortened(text, found):
    assert match_id(text, IDS) == found


def test_a_beginning_that_several_share_means_none_of_them():
    with pytest.raises(IdAmbiguous, match="write more of it"):
        match_id("abcd", IDS)
    assert match_id("abcd", ["abcd", "abcde"]) == "abcd"


def test_a_run_is_known_by_both_of_its_names():
    runs = [RunView(id="ours-1", run_id="mine-1", session_id="s", state=RunState.ACTIVE)]
    assert find_run("ours", runs) == find_run("mine-1", runs) == "ours-1"
    assert find_run("none", runs) is None


def provider(*models, **more):
    return ProviderConfig(models=tuple(CatalogModel(id=name, name=name) for name in models), **more)


PROVIDERS = {
    "anthropic": provider("sonnet", "haiku"),
    "openrouter": provider("anthropic/sonnet", "haiku", "anthropic/listed"),
    "mine": provider("m"),
    "shed": provider(discover_models=True),
}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("sonnet", ("anthropic", "sonnet")),
        ("anthropic/sonnet", ("anthropic", "sonnet")),
        ("openrouter/anthropic/sonnet", ("openrouter", "anthropic/sonnet")),
        ("openrouter/haiku", ("openrouter", "haiku")),
        ("shed/anything", ("shed", "anything")),
        ("anthropic/newer", ("anthropic", "newer")),
        ("anthropic/listed", ("openrouter", "anthropic/listed")),
    ],
)
def test_a_model_is_named_with_its_provider_or_without(text, chosen):
    name, model = chosen
    assert find_model(text, PROVIDERS) == SelectedModel(provider=name, model=model)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("haiku", "write anthropic/haiku or openrouter/haiku"),
        ("gpt", "choose one of: anthropic/sonnet"),
        ("mine/newer", "choose one of: anthropic/sonnet"),
        ("openai/gpt", "choose one of: anthropic/sonnet"),
        ("openai/gpt", r"; why others are left out: crush-trio config check$"),
    ],
)
def test_a_model_that_cannot_be_told_is_refused_with_those_there_are(text, advice):
    with pytest.raises(ModelUnknown, match=advice):
        find_model(text, PROVIDERS)


@pytest.mark.parametrize(
    ("words", "piped", "prompt"),
    [
        (["fix", "it"], "", "fix it"),
        ([], "from a pipe\n", "from a pipe"),
        (["explain"], "text\n", "explain\n\ntext"),
        (["explain", "-", "briefly"], "text\n", "explain text briefly"),
        (["-"], "", ""),
        ([], "", ""),
    ],
)
def test_a_prompt_is_words_and_what_is_piped_in(words, piped, prompt):
    assert join_prompt(words, piped) == prompt
