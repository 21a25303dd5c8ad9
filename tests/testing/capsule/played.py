"""A server in memory with the real agent, a scripted model and recorded runs."""

from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import evolve

from crush_trio.config.load import Draft, finish_draft
from crush_trio.config.sources import DataDir, Layers, Project
from crush_trio.config.template import refuse_command
from crush_trio.testing.capsule.playback import PlayedConfig
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.server.config import FixedConfig
from crush_trio.testing.server.server import client_id
from crush_trio.wire.config import CatalogModel, CatalogProvider, Config, ProviderConfig
from crush_trio.wire.config import SelectedModel as Selected
from tests.server.brought import open_server_with

MODEL = CatalogModel(id="m", name="m", context_window=100_000, default_max_tokens=1000)
CONFIG = Config(
    providers={"own": ProviderConfig(id="own", models=(MODEL,))},
    models={name: Selected(model="m", provider="own") for name in ("large", "small")},
)


@asynccontextmanager
async def open_config(places, *, config=CONFIG, environment=()):
    """Open a configuration whose one model is the program's own."""
    places = evolve(places, environment=dict(environment))
    draft = Draft(
        places=places,
        project=Project(directories=(places.directory,)),
        layers=Layers(()),
        tree={},
        config=config,
        data_dir=DataDir(path=places.directory / ".crush"),
        warnings=(),
    )
    known = [CatalogProvider(id="own", name="own")]
    loaded = await finish_draft(draft, catalogue=known, run_command=refuse_command, revision=1)
    yield FixedConfig(PlayedConfig.of(loaded, trio.lowlevel.checkpoint))


@asynccontextmanager
async def open_agent_server(script, *, environment=(), config=CONFIG, **settings):
    """Open a server whose agent is asked by a scripted model; gives the server and a workspace."""
    async with open_server_with(
        make_turn=None,
        providers={"own": ScriptedProvider(script)},
        open_config=partial(open_config, config=config, environment=environment),
        **settings,
    ) as server:
        place = await server.create(client_id(1), "/srv/nowhere/project", interactive=True)
        yield server, place


async def run_recorded(place, session, prompt, run_id, **more):
    """Run a prompt to its end; return its capsule."""
    body = {"session_id": session, "prompt": prompt, "run_id": run_id, "record": True, **more}
    assert (await place.request("POST", "/agent", body)).status == 202
    await ended(place, run_id)
    return (await place.request("GET", f"/runs/{run_id}/capsule")).body


async def ended(place, run_id):
    """Wait for the end of a run."""
    with await place.watch(client_id(1), "&form=native") as events:
        run = (await place.request("GET", f"/runs/{run_id}")).json()
        while run.get("state") not in {"completed", "errored", "cancelled", "folded"}:
            event = await events.next()
            run = event if event.get("run_id") == run_id else run
