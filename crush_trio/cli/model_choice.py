"""Another model for the length of one run.

A submission cannot name a model: a workspace has one selected, for everybody. So it is selected, and
what was selected before is put back at the end, unless somebody has chosen yet another one meanwhile.
Runs that others begin in between have the model too; that is why it is put back as soon as possible.
A choice of the workspace's own that is the same as it would have without one is not told from none.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from crush_trio.cli.choosing import find_model
from crush_trio.client.settings import ConfigRoutes
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.wire.catalog import SelectedModel
from crush_trio.wire.codec import unstructure
from crush_trio.wire.requests import ModelType

RESTORE_LIMIT: Final = 2.0
"""Seconds that putting the former model back may take."""

_KEY: Final = f"models.{ModelType.LARGE}"


@asynccontextmanager
async def model_selected(workspace: RemoteWorkspace, text: str | None) -> AsyncIterator[None]:
    """Have the model that *text* names selected for the length of the block; None changes nothing."""
    if text is None:
        await trio.lowlevel.checkpoint()
        yield
        return
    config = workspace.config
    shown = await config.get()
    wanted, before = find_model(text, shown.providers), shown.models[ModelType.LARGE]
    if _same(wanted, before):
        yield
        return
    own = await _set_aside(config, before)
    await config.set(_KEY, unstructure(wanted))
    try:
        yield
    finally:
        with trio.move_on_after(RESTORE_LIMIT, shield=True):
            await _put_back(config, wanted, own)


async def _set_aside(config: ConfigRoutes, before: SelectedModel) -> SelectedModel | None:
    """Return the choice of the workspace itself; None if it has none and follows the user's."""
    await config.remove(_KEY)
    return None if _same(await _selected(config), before) else before


async def _put_back(config: ConfigRoutes, wanted: SelectedModel, own: SelectedModel | None) -> None:
    if not _same(await _selected(config), wanted):
        return
    if own is None:
        await config.remove(_KEY)
    else:
        await config.set(_KEY, unstructure(own))


async def _selected(config: ConfigRoutes) -> SelectedModel:
    return (await config.get()).models[ModelType.LARGE]


def _same(one: SelectedModel, other: SelectedModel) -> bool:
    return (one.provider, one.model) == (other.provider, other.model)
