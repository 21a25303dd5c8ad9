"""The examples of the wire contract that are about models and commands, from workspaces on real files.

A configuration file, and a catalogue in the place of the built-in one, make a workspace of which the
server then says exactly what the contract says. Where the example names `/abs/cwd`, the workspace is
there: a directory need not exist to be hosted, and its user's files are elsewhere.
"""

import orjson
import pytest

from crush_trio.testing.server.server import client_id
from crush_trio.tools.shell.process import open_process_group
from crush_trio.wire.config import CatalogModel, CatalogProvider, ModelOptions
from tests.server.brought import open_server_with
from tests.wire.test_codec_examples import BODIES

# Configurations are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock

A = client_id(1)
SAID = {each.section: orjson.loads(each.text) for each in BODIES}


def catalogue(*models, small=""):
    """Return a catalogue that knows one provider, which needs no key."""
    provider = CatalogProvider(
        id="p1", name="P One", type="openai-compat", models=models, default_small_model_id=small
    )
    return [provider]


def model(**known):
    return CatalogModel(id="m1", name="M One", **known)


async def asked(home, target, config, models):
    """Return what the workspace `/abs/cwd` of a user with this configuration answers."""
    user_file = home / ".config" / "crush" / "crush.json"
    user_file.parent.mkdir(parents=True)
    user_file.write_bytes(orjson.dumps(config))
    async with open_server_with(open_config=None, home=home, catalogue=models) as server:
        place = await server.create(A, "/abs/cwd")
        answer = await place.request("GET", target)
        assert answer.status == 200
        return answer.json()


async def test_the_minimal_configuration_is_served_as_it_is_written(tmp_path):
    chosen = {"model": "m1", "provider": "p1"}
    config = {"models": {"large": chosen, "small": chosen}, "providers": {"p1": {}}}
    models = catalogue(model(context_window=128_000, default_max_tokens=4096))
    told, said = await asked(tmp_path, "/config", config, models), SAID["2.2 minimal config"]
    assert told["providers"] == said["providers"]
    assert told["models"] == {slot: {**chosen, "max_tokens": 4096} for slot in ("large", "small")}
    assert told["options"].items() >= (said["options"] | {"tui": told["options"]["tui"]}).items()
    assert not {"mcp", "lsp"} & told.keys()


async def test_the_agent_is_served_as_it_is_written(tmp_path):
    known = model(
        cost_per_1m_in=3,
        cost_per_1m_out=15,
        cost_per_1m_in_cached=3.75,
        cost_per_1m_out_cached=0.3,
        context_window=200_000,
        default_max_tokens=8192,
        can_reason=True,
        reasoning_levels=("low", "medium", "high"),
        default_reasoning_effort="medium",
        supports_attachments=True,
        options=ModelOptions(),
    )
    config = {"providers": {"p1": {}}}
    assert await asked(tmp_path, "/agent", config, catalogue(known)) == SAID["6.7 agent info"]


async def test_the_default_small_model_is_served_as_it_is_written(tmp_path):
    large = CatalogModel(id="big", name="Big", default_max_tokens=9)
    small = model(default_max_tokens=4096, can_reason=True, reasoning_levels=("low", "high"))
    models = catalogue(large, small, small="m1")
    target = "/agent/default-small-model?provider_id=p1"
    told = await asked(tmp_path, target, {"providers": {"p1": {}}}, models)
    assert told == SAID["6.9 default small model"]


@pytest.mark.slow
async def test_what_a_command_printed_is_served_as_it_is_written(tmp_path):
    async with open_server_with(opens=open_process_group) as server:
        place = await server.create(A, str(tmp_path))
        session = await place.create_session()
        body = {"session_id": "", "command": "echo a; exit 1"}
        answer = await place.request("POST", f"/agent/sessions/{session}/shell", body)
        assert (answer.status, answer.json()) == (200, SAID["3.7 shell"])
        [kept] = await place.messages(session)
        assert kept["parts"][0]["data"] == {"command": body["command"], **SAID["3.7 shell"]}
