"""The page about configuration: its examples load, and its tables are complete."""

import json
import re
from pathlib import Path

import pytest

from crush_trio.config import CONTEXT_NAMES, ConfigWarningKind
from crush_trio.config.checks import PROVIDER_TYPES
from crush_trio.config.files import ConfigFile
from crush_trio.config.known_providers import BY_ENVIRONMENT
from crush_trio.wire.config import (
    HookConfig,
    LspServerConfig,
    McpServerConfig,
    Options,
    ProviderConfig,
)
from crush_trio.wire.fields import wire_fields
from tests.config.homes import CATALOGUE

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_the_page_has_examples():
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_an_example_loads_and_there_is_nothing_wrong_with_it(home, number):
    home.write(home.user_file, EXAMPLES[number])
    loaded = await home.load(catalogue=CATALOGUE)
    wrong = {
        ConfigWarningKind.UNKNOWN_KEY,
        ConfigWarningKind.NOT_EXPANDED,
        ConfigWarningKind.NOT_TRUSTED,
    }
    assert [str(warning) for warning in loaded.warnings if warning.kind in wrong] == []
    assert json.loads(EXAMPLES[number]).keys() <= {each.key for each in wire_fields(ConfigFile)}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_the_models_of_an_example_are_the_ones_in_use(home, number):
    home.write(home.user_file, EXAMPLES[number])
    loaded = await home.load(catalogue=CATALOGUE)
    for slot, wanted in json.loads(EXAMPLES[number]).get("models", {}).items():
        assert loaded.config.models[slot].model == wanted["model"]
        assert loaded.config.models[slot].provider == wanted["provider"]


def test_every_provider_and_every_variable_is_named():
    variables = set()
    for known in BY_ENVIRONMENT.values():
        variables.add(known.id)
        variables |= set(re.findall(r"\$\{?([A-Z_]+)", f"{known.key} {known.address}"))
    assert variables - CODE == set()


def test_every_type_of_provider_is_named():
    assert not PROVIDER_TYPES - CODE


@pytest.mark.parametrize(
    "cls", [ConfigFile, Options, ProviderConfig, McpServerConfig, LspServerConfig, HookConfig]
)
def test_every_key_is_named(cls):
    assert {each.key for each in wire_fields(cls)} - CODE - {"id"} == set()


def test_every_context_file_is_named():
    names = {name.removeprefix(".github/").replace(".local", "") for name in CONTEXT_NAMES}
    assert names - CODE == set()
