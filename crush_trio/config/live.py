"""The configuration of an open workspace: what holds now, and how it is changed.

One task makes all changes, one after the other, in the order in which they were asked for. Whoever asks
waits for the answer; whoever stops waiting changes nothing, because the change is not its work: what has
been written is always read back and shown, even if the client that asked hangs up in between. A lock
around the caller's own writing and reading could not promise that.

Readers look at `current`, an immutable snapshot, whenever they like. Revisions only rise.
"""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from attrs import define, field

from crush_trio.config.context_files import mark_initialized, needs_init
from crush_trio.config.edits import (
    Change,
    remove_value,
    set_compact_mode,
    set_model,
    set_provider_key,
    set_value,
    trust_directory,
    write_change,
)
from crush_trio.config.load import finish, load_config, read_draft
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Places
from crush_trio.config.template import RunCommand, refuse_command
from crush_trio.errors import WorkspaceClosing
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.config import CatalogProvider, SelectedModel
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import ModelType, Scope


@define(eq=False)
class _Request:
    """One thing to do: a change, or without one to read the files again."""

    change: Change | None
    _done: trio.Event = field(factory=trio.Event, init=False)
    _answer: bool = field(default=False, init=False)
    _failure: Exception | None = field(default=None, init=False)

    def answer(self, changed: bool) -> None:
        self._answer = changed
        self._done.set()

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        self._done.set()

    async def answered(self) -> bool:
        await self._done.wait()
        if self._failure is not None:
            raise self._failure
        return self._answer


class Configuration(Protocol):
    """What others need of a workspace's configuration; `LiveConfig` has it from files."""

    @property
    def current(self) -> LoadedConfig:
        """What holds now."""
        ...

    async def set(self, scope: Scope, key: str, value: Json) -> bool:
        """Put *value* at a dotted key; whether anything is different now, as with all that follow."""
        ...

    async def remove(self, scope: Scope, key: str) -> bool:
        """Take away what is at a dotted key."""
        ...

    async def set_model(self, scope: Scope, model_type: ModelType, model: SelectedModel) -> bool:
        """Select a model."""
        ...

    async def set_compact_mode(self, scope: Scope, enabled: bool) -> bool:
        """Make the terminal client compact, or not."""
        ...

    async def set_provider_key(
        self, scope: Scope, provider_id: str, kind: str, api_key: Json
    ) -> bool:
        """Give a provider a key."""
        ...

    async def reload(self) -> LoadedConfig:
        """Look again, and return what holds now."""
        ...

    async def newer_than(self, revision: int) -> LoadedConfig:
        """Wait for a snapshot after *revision*; raise `WorkspaceClosing` once there will be none."""
        ...

    async def needs_init(self) -> bool:
        """Whether a client should offer to introduce the project to agents."""
        ...

    async def mark_initialized(self) -> None:
        """Remember that the project has been introduced, or that nobody wants it to be."""
        ...


@define(eq=False)
class LiveConfig:
    """The configuration of one workspace while it is open. Made by `open_live_config`."""

    _current: LoadedConfig
    _catalogue: Sequence[CatalogProvider] = field(repr=False)
    _run_command: RunCommand = field(repr=False)
    _requests: trio.MemorySendChannel[_Request] = field(repr=False)
    _newer: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _closed: bool = field(default=False, init=False)

    # ── Looking ─────────────────────────────────────────────────────────────────────────────────

    @property
    def current(self) -> LoadedConfig:
        """What holds now. Keep it for as long as one consistent view is needed."""
        return self._current

    async def newer_than(self, revision: int) -> LoadedConfig:
        """Wait for a snapshot after *revision* and return the newest there is.

        Raises `WorkspaceClosing` once there will be none.
        """
        await trio.lowlevel.checkpoint()
        while self._current.revision <= revision:
            if self._closed:
                raise WorkspaceClosing
            await self._newer.park()
        return self._current

    # ── Changing: each says whether anything is different now ───────────────────────────────────

    async def set(self, scope: Scope, key: str, value: Json) -> bool:
        """Put *value* at a dotted key of the file that *scope* names."""
        return await self._ask(set_value(scope, key, value))

    async def remove(self, scope: Scope, key: str) -> bool:
        """Take away what is at a dotted key of the file that *scope* names."""
        return await self._ask(remove_value(scope, key))

    async def set_model(self, scope: Scope, model_type: ModelType, model: SelectedModel) -> bool:
        """Select a model and remember it among the recent ones."""
        return await self._ask(set_model(scope, model_type, model))

    async def set_compact_mode(self, scope: Scope, enabled: bool) -> bool:
        """Make the terminal client compact, or not."""
        return await self._ask(set_compact_mode(scope, enabled))

    async def set_provider_key(
        self, scope: Scope, provider_id: str, kind: str, api_key: Json
    ) -> bool:
        """Give a provider a key of kind `string`, or a token of kind `oauth`."""
        return await self._ask(set_provider_key(scope, provider_id, kind, api_key))

    async def trust(self, directory: Path) -> bool:
        """Trust the files below *directory*, for all workspaces of the user."""
        return await self._ask(trust_directory(directory))

    async def reload(self) -> LoadedConfig:
        """Read all files again, run the commands of `env` again, and return what holds now."""
        await self._ask(None)
        return self._current

    # ── The project ─────────────────────────────────────────────────────────────────────────────

    async def needs_init(self) -> bool:
        """Whether a client should offer to introduce the project to agents."""
        return await needs_init(self._current.project.directory, self._current.data_dir)

    async def mark_initialized(self) -> None:
        """Remember that the project has been introduced, or that nobody wants it to be."""
        await mark_initialized(self._current.data_dir)

    async def _ask(self, change: Change | None) -> bool:
        """Hand in a request, at once and in order, and wait for its answer."""
        request = _Request(change)
        if self._closed:
            raise WorkspaceClosing
        self._requests.send_nowait(request)
        return await request.answered()

    # ── The task that makes the changes ─────────────────────────────────────────────────────────

    async def serve(self, requests: trio.MemoryReceiveChannel[_Request]) -> None:
        """Do what is asked for, until cancelled."""
        async for request in requests:
            try:
                request.answer(await self._perform(request.change))
            except Exception as error:  # noqa: BLE001 - it is raised again, in whoever asked
                request.fail(error)
            except trio.Cancelled:
                request.fail(WorkspaceClosing())
                raise

    async def _perform(self, change: Change | None) -> bool:
        now = self._current
        if change is None:
            read = partial(read_draft, now.places, catalogue=self._catalogue, data_dir=now.pinned)
            draft = await trio.to_thread.run_sync(read)
        else:
            written = await write_change(
                change,
                places=now.places,
                data_dir=now.pinned,
                config=now.config,
                catalogue=self._catalogue,
            )
            if written is None:
                return False
            draft = written
        self._current = await finish(
            draft,
            catalogue=self._catalogue,
            run_command=self._run_command,
            revision=now.revision + 1,
            previous=None if change is None else now,
        )
        self._newer.unpark_all()
        return True

    def close(self) -> None:
        """Refuse what is asked from now on; whoever waits for something newer is told."""
        self._closed = True
        self._newer.unpark_all()


@asynccontextmanager
async def open_live_config(
    places: Places,
    *,
    catalogue: Sequence[CatalogProvider] = (),
    run_command: RunCommand = refuse_command,
) -> AsyncIterator[LiveConfig]:
    """Load the configuration of a workspace and keep it, changeable, for the length of the block.

    The data directory is chosen now and stays: the workspace's other things are in it. A change to
    `options.data_directory` holds from the next time on. Raises `ConfigInvalid` if a file is broken.
    """
    first = await load_config(places, catalogue=catalogue, run_command=run_command)
    sender, receiver = trio.open_memory_channel[_Request](math.inf)
    live = LiveConfig(first, catalogue, run_command, sender)
    async with open_hidden_nursery() as nursery:
        # What is asked for before the task has begun waits in the channel.
        nursery.start_soon(live.serve, receiver)  # noqa: ASYNC113
        try:
            yield live
        finally:
            live.close()
            nursery.cancel_scope.cancel()
            _refuse(receiver)


def _refuse(requests: trio.MemoryReceiveChannel[_Request]) -> None:
    """Answer what is left: it will not be done."""
    while True:
        try:
            requests.receive_nowait().fail(WorkspaceClosing())
        except trio.WouldBlock:
            return
