"""From a configuration to a model that can be asked."""

from math import inf

import pytest
import trio
from attrs import evolve

from crush_trio.agent.turn.model import ConfiguredModels
from crush_trio.config.live import open_live_config
from crush_trio.config.models import DEMO_CONFIG
from crush_trio.config.snapshot import Resolved
from crush_trio.config.sources import Places
from crush_trio.providers.call import Patience, converse
from crush_trio.providers.demo.provider import DemoProvider
from crush_trio.providers.errors import ProviderTooSlow
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import Say, Sleep
from crush_trio.testing.server.config import open_fixed_config
from crush_trio.wire.config import OAuthToken, ProviderConfig
from crush_trio.wire.requests import ModelType
from tests.config.homes import Home
from tests.providers.asking import Recorder, request


class Asked:
    """Stands for the connections: takes note of the endpoint it is asked for."""

    def provider(self, endpoint):
        self.endpoint = endpoint
        return ScriptedProvider()


class Live:
    """A configuration whose only provider is *config*."""

    def __init__(self, current, config):
        self.current = self
        self._current, self._config = current, config

    def slot(self, slot):
        return self._current.slot(slot)

    async def resolve_provider(self, name):
        return Resolved(name=name, config=self._config)


async def choose(tmp_path, config, **more):
    asked = Asked()
    places = Places(directory=tmp_path, home=tmp_path)
    async with open_fixed_config(places) as fixed:
        models = ConfiguredModels(Live(fixed.current, config), asked, **more)
        return await models.choose(ModelType.LARGE), asked


async def test_nothing_configured_is_the_offline_demo(tmp_path):
    chosen, _ = await choose(tmp_path, DEMO_CONFIG)
    assert isinstance(chosen.provider, DemoProvider)
    assert chosen.provider_id == "demo"


async def test_a_provider_of_the_program_is_used_under_its_name(tmp_path):
    mine = ScriptedProvider()
    chosen, _ = await choose(tmp_path, ProviderConfig(id="mine"), own={"mine": mine})
    assert chosen.provider is mine


@pytest.mark.parametrize(
    ("kind", "key"), [("openai-compat", "token-1"), ("anthropic", "Bearer token-1")]
)
async def test_a_token_is_shown_as_a_bearer_shows_it(tmp_path, kind, key):
    config = ProviderConfig(id="p", type=kind, oauth=OAuthToken(access_token="token-1"))
    _, asked = await choose(tmp_path, config)
    assert asked.endpoint.api_key == key


async def test_a_key_is_shown_as_it_is(tmp_path):
    config = ProviderConfig(id="p", type="anthropic", api_key="key-1", flat_rate=True)
    chosen, asked = await choose(tmp_path, config)
    assert asked.endpoint.api_key == "key-1"
    assert (chosen.flat_rate, chosen.media_results) == (True, True)
    other, _ = await choose(tmp_path, evolve(config, type="openai"))
    assert not other.media_results


async def test_the_limits_in_a_file_are_those_of_the_call(tmp_path):
    home = Home(tmp_path)
    limits = {"connect": 3, "first": 700, "idle": 20, "turn": "none"}
    provider = {
        "type": "openai-compat",
        "base_url": "http://127.0.0.1:9/v1",
        "models": [{"id": "m"}],
        "limits": limits,
    }
    large = {"large": {"provider": "mine", "model": "m"}}
    home.write(home.user_file, {"providers": {"mine": provider}, "models": large})
    asked = Asked()
    async with open_live_config(home.places()) as live:
        chosen = await ConfiguredModels(live, asked).choose(ModelType.LARGE)
    assert asked.endpoint.connect_limit == 3
    patience = Patience().limited(chosen.limits)
    assert patience.whole == inf
    answers = [Sleep(690), Say("a"), Sleep(30), Say("b")]
    begun = trio.current_time()
    with pytest.raises(ProviderTooSlow, match=r"raise providers\.p\.limits\.idle"):
        await converse(
            ScriptedProvider([answers] * 9),
            request(),
            Recorder(),
            patience=evolve(patience, attempts=1),
            waiting=lambda _: None,
        )
    assert trio.current_time() - begun == pytest.approx(710)
