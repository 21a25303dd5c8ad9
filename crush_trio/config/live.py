"""`LiveConfig`: the configuration of an open workspace, and changes to it.

One task makes all changes, in the order of the requests. Callers wait for its answer. A cancelled
caller does not affect its change: what has been written is always read back and becomes `current`,
even if the client disconnects in between. A lock around reading and writing in the caller's task
could not guarantee that.

`current` is an immutable snapshot that can be read at any time. Revisions only rise.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from attrs import define, evolve, field

from crush_trio.config.context_files import mark_initialized, needs_init
from crush_trio.config.edits import (
    Change,
    add_rules,
    decline_wishes,
    remove_rule,
    remove_value,
    scope_of_key,
    set_compact_mode,
    set_model,
    set_provider_key,
    set_value,
    trust_directory,
    write_change,
)
from crush_trio.config.known_providers import KnownProvider
from crush_trio.config.load import Draft, finish_draft, known_for, load_config, read_draft
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Places
from crush_trio.config.template import RunCommand, refuse_command
from crush_trio.config.trust.answers import TrustAnswer, TrustedOnce
from crush_trio.config.trust.wishes import Wishes
from crush_trio.errors import ProviderKeyInvalid, WorkspaceClosing
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.asks import PermissionRule
from crush_trio.wire.config import CatalogProvider, SelectedModel
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import ModelType, Scope


@define(eq=False)
class _Request:
    """One request to the task that makes the changes; *perform* returns whether anything changed."""

    perform: Callable[[], Awaitable[bool]]
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
    """What other packages need of a workspace's configuration; `LiveConfig` satisfies it."""

    @property
    def current(self) -> LoadedConfig:
        """The present snapshot."""
        ...

    async def set(self, scope: Scope, key: str, value: Json) -> bool:
        """Set *value* at a dotted key; return whether anything changed, as all methods below do."""
        ...

    async def remove(self, scope: Scope, key: str) -> bool:
        """Remove the value at a dotted key."""
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
        """Set a provider's key."""
        ...

    async def add_rules(self, rules: Sequence[PermissionRule]) -> bool:
        """Add permission rules to the user's file."""
        ...

    async def remove_rule(self, rule_id: str) -> bool:
        """Remove a permission rule from the user's file."""
        ...

    async def reload(self) -> LoadedConfig:
        """Read everything again, and return the new snapshot."""
        ...

    async def refresh_wishes(self) -> LoadedConfig:
        """Return a snapshot with the present wishes of the project."""
        ...

    async def answer_wishes(self, wishes: Wishes, answer: TrustAnswer) -> bool:
        """Apply what the user said to *wishes*; False if the project wants something else by now."""
        ...

    async def newer_than(self, revision: int) -> LoadedConfig:
        """Wait for a snapshot after *revision*; raise `WorkspaceClosing` when it closes."""
        ...

    async def needs_init(self) -> bool:
        """Whether a client should offer to set up the project for agents."""
        ...

    async def mark_initialized(self) -> None:
        """Remember that the project was set up, or that the user declined."""
        ...


@define(eq=False)
class LiveConfig:
    """The configuration of one workspace while it is open. Made by `open_live_config`."""

    _current: LoadedConfig
    _catalogue: Sequence[CatalogProvider] = field(repr=False)
    _run_command: RunCommand = field(repr=False)
    _requests: trio.MemorySendChannel[_Request] = field(repr=False)
    _newer: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _once: TrustedOnce | None = field(default=None, init=False)
    """What the user trusts while the workspace is open."""
    _closed: bool = field(default=False, init=False)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    @property
    def current(self) -> LoadedConfig:
        """The present snapshot. Keep a reference for as long as one consistent view is needed."""
        return self._current

    async def newer_than(self, revision: int) -> LoadedConfig:
        """Wait for a snapshot after *revision* and return the newest one.

        Raises `WorkspaceClosing` when the workspace closes.
        """
        await trio.lowlevel.checkpoint()
        while self._current.revision <= revision:
            if self._closed:
                raise WorkspaceClosing
            await self._newer.park()
        return self._current

    # ── Changing: each returns whether anything changed ─────────────────────────────────────────

    async def set(self, scope: Scope, key: str, value: Json) -> bool:
        """Set *value* at a dotted key of the file of *scope*."""
        return await self._ask(set_value(scope, key, value))

    async def remove(self, scope: Scope, key: str) -> bool:
        """Remove the value at a dotted key of the file of *scope*."""
        return await self._ask(remove_value(scope, key))

    async def set_model(self, scope: Scope, model_type: ModelType, model: SelectedModel) -> bool:
        """Select a model and add it to the recent ones."""
        return await self._ask(set_model(scope, model_type, model))

    async def set_compact_mode(self, scope: Scope, enabled: bool) -> bool:
        """Make the terminal client compact, or not."""
        return await self._ask(set_compact_mode(scope, enabled))

    async def set_provider_key(
        self, scope: Scope, provider_id: str, kind: str, api_key: Json
    ) -> bool:
        """Set a provider's key, of kind `string`, or its token, of kind `oauth`.

        The key of a provider that only the project describes is kept for this workspace, whatever
        the scope. Raises `ProviderKeyInvalid` for a key that is none, or a provider that there is not.
        """
        change = set_provider_key(scope, provider_id, kind, api_key)
        return await self._request(partial(self._change_key, change, provider_id))

    async def trust(self, directory: Path) -> bool:
        """Trust the files below *directory*, for all workspaces of the user."""
        return await self._ask(trust_directory(directory))

    async def add_rules(self, rules: Sequence[PermissionRule]) -> bool:
        """Add permission rules to the user's file, for all workspaces of the user."""
        return await self._ask(add_rules(rules))

    async def remove_rule(self, rule_id: str) -> bool:
        """Remove the permission rule with this id from the user's file."""
        return await self._ask(remove_rule(rule_id))

    async def reload(self) -> LoadedConfig:
        """Read all files again, run the commands of `env` again, and return the new snapshot."""
        await self._request(self._reload)
        return self._current

    # ── Trust ───────────────────────────────────────────────────────────────────────────────────

    async def refresh_wishes(self) -> LoadedConfig:
        """Return a snapshot with the present wishes of the project.

        The files are read again, because another program may have trusted the project or changed its
        files. Without wishes the present snapshot is returned at once.
        """
        await trio.lowlevel.checkpoint()
        if self._current.wishes is not None:
            await self._request(self._refresh)
        return self._current

    async def answer_wishes(self, wishes: Wishes, answer: TrustAnswer) -> bool:
        """Apply what the user said to *wishes*; False if the project wants something else by now.

        The answer is queued before the first checkpoint, so a cancelled caller does not lose it.
        """
        return await self._request(partial(self._answer, wishes, answer))

    # ── The project ─────────────────────────────────────────────────────────────────────────────

    async def needs_init(self) -> bool:
        """Whether a client should offer to set up the project for agents."""
        return await needs_init(self._current.project.directory, self._current.data_dir)

    async def mark_initialized(self) -> None:
        """Remember that the project was set up, or that the user declined."""
        await mark_initialized(self._current.data_dir)

    async def _ask(self, change: Change) -> bool:
        """Queue a change and wait until it is made."""
        return await self._request(partial(self._change, change))

    async def _request(self, perform: Callable[[], Awaitable[bool]]) -> bool:
        """Queue a request and wait for its answer."""
        request = _Request(perform)
        if self._closed:
            raise WorkspaceClosing
        self._requests.send_nowait(request)
        return await request.answered()

    # ── The task that makes the changes ─────────────────────────────────────────────────────────

    async def serve(self, requests: trio.MemoryReceiveChannel[_Request]) -> None:
        """Handle requests until cancelled."""
        async for request in requests:
            try:
                request.answer(await request.perform())
            except Exception as error:  # noqa: BLE001 - it is raised again in the caller's task
                request.fail(error)
            except trio.Cancelled:
                request.fail(WorkspaceClosing())
                raise

    async def _change(self, change: Change) -> bool:
        now = self._current
        draft = await write_change(
            change,
            places=now.places,
            data_dir=now.pinned,
            config=now.config,
            catalogue=self._catalogue,
            once=self._once,
        )
        return draft is not None and await self._use(draft)

    async def _change_key(self, change: Change, provider_id: str) -> bool:
        now = self._current
        known = known_for(now.config, self._catalogue)
        try:
            scope = scope_of_key(change.scope, provider_id, now.expander.layers, known)
        except ProviderKeyInvalid as error:
            if now.wishes is None:
                raise
            raise ProviderKeyInvalid(
                f"{error.detail}; if the project describes it, trust the project: {now.wishes.command}"
            ) from None
        self._check_address(provider_id, known.get(provider_id))
        return await self._change(evolve(change, scope=scope))

    def _check_address(self, provider_id: str, built_in: KnownProvider | None) -> None:
        """Refuse a key for a provider that cannot be used with it, because its address is not known."""
        expander, way = self._current.expander, ("providers", provider_id, "base_url")
        if built_in is None or expander.layers.origin(*way) is not None:
            return
        if built_in.address and not expander.may_have_value(built_in.address, *way):
            raise ProviderKeyInvalid(
                f"{provider_id} needs an address besides its key; set {'.'.join(way)}, or its variable "
                f"{built_in.address}, then set the key"
            )

    async def _reload(self) -> bool:
        return await self._use(await self._read(), fresh=True)

    async def _refresh(self) -> bool:
        draft = await self._read()
        return draft.wishes != self._current.wishes and await self._use(draft)

    async def _answer(self, wishes: Wishes, answer: TrustAnswer) -> bool:
        """Apply an answer, unless the files have changed since the question was asked."""
        await self._refresh()
        if self._current.wishes != wishes:
            return False
        match answer:
            case TrustAnswer.ALWAYS:
                return await self._change(trust_directory(wishes.directory))
            case TrustAnswer.ONCE:
                once = TrustedOnce(directory=wishes.directory, digest=wishes.digest)
                changed = await self._use(await self._read(once))
                self._once = once
                return changed
            case TrustAnswer.NO:
                await decline_wishes(wishes, self._current.places)
                return await self._use(await self._read())

    async def _read(self, once: TrustedOnce | None = None) -> Draft:
        now = self._current
        read = partial(
            read_draft,
            now.places,
            catalogue=self._catalogue,
            data_dir=now.pinned,
            once=once or self._once,
        )
        return await trio.to_thread.run_sync(read)

    async def _use(self, draft: Draft, *, fresh: bool = False) -> bool:
        """Make *draft* the current snapshot; if *fresh*, run the commands of `env` again."""
        now = self._current
        self._current = await finish_draft(
            draft,
            catalogue=self._catalogue,
            run_command=self._run_command,
            revision=now.revision + 1,
            previous=None if fresh else now,
            secrets=now.secrets,
        )
        self._newer.unpark_all()
        return True

    def close(self) -> None:
        """Refuse new requests, and end the waits of `newer_than`."""
        self._closed = True
        self._newer.unpark_all()


@asynccontextmanager
async def open_live_config(
    places: Places,
    *,
    catalogue: Sequence[CatalogProvider] = (),
    run_command: RunCommand = refuse_command,
    secrets: KnownSecrets | None = None,
) -> AsyncIterator[LiveConfig]:
    """Load the configuration of a workspace and run the task that changes it, during the block.

    The data directory is chosen now and does not change: the workspace's store is in it. A change
    of `options.data_directory` takes effect at the next opening. Secrets that are found are added to
    *secrets*. Raises `ConfigInvalid` if a file
    is not valid.
    """
    first = await load_config(places, catalogue=catalogue, run_command=run_command, secrets=secrets)
    sender, receiver = trio.open_memory_channel[_Request](math.inf)
    live = LiveConfig(first, catalogue, run_command, sender)
    async with open_hidden_nursery() as nursery:
        # `start_soon` is enough: requests that come before the task has begun wait in the channel.
        nursery.start_soon(live.serve, receiver)  # noqa: ASYNC113
        try:
            yield live
        finally:
            live.close()
            nursery.cancel_scope.cancel()
            _refuse(receiver)


def _refuse(requests: trio.MemoryReceiveChannel[_Request]) -> None:
    """Fail the requests that are left in the channel."""
    while True:
        try:
            requests.receive_nowait().fail(WorkspaceClosing())
        except trio.WouldBlock:
            return
