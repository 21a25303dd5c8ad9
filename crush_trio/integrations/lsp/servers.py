"""`WorkspaceLanguageServers`: the language servers of a workspace, and which files they handle (I.4).

The servers follow from the current configuration and, in a trusted project, from the installed programs
and the files of the project. While nothing is configured, nothing is imported, started or waited for:
the other modules of this package are imported when they are first needed.

Only the user decides what is started. A server that is configured, even partly, by a file of the project
is started only if the user trusts the project. The same holds for servers that are not configured at
all: a language server may run code of the project, such as build scripts and plugins.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field

from crush_trio.clock import Clock
from crush_trio.config.errors import ExpansionFailed, NotConfigured
from crush_trio.config.redaction import redact_text, searchable_secrets
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.errors import LspNotFound, WorkspaceClosing
from crush_trio.events.facts import Fact
from crush_trio.integrations.base import Surroundings
from crush_trio.integrations.lsp.known_servers import (
    KNOWN,
    ServerSpec,
    count_files,
    find_known_servers,
    handles,
    has_root,
    program_of,
)
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.base import Tool
from crush_trio.wire.answers import Diagnostics
from crush_trio.wire.config import LspServerConfig
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.integrations import LspClientInfo, LspEvent

if TYPE_CHECKING:
    from crush_trio.integrations.lsp.connection import OpenProgram
    from crush_trio.integrations.lsp.server import LanguageServer
    from crush_trio.tools.files.changes import FileChanges
    from crush_trio.tools.shell.process import Command

log = logging.getLogger(__name__)

MAX_LOGGED: Final = 2000
"""Maximum characters of a server's message that are logged."""

RECHECK_PAUSE: Final = 30.0
"""Seconds before the disk is checked again for something that was missing (I.4)."""


@define(eq=False)
class WorkspaceLanguageServers:
    """Satisfies `LanguageServers`, and `ServerHost` for its servers. Made by `open_language_servers`."""

    _surroundings: Surroundings = field(repr=False)
    tasks: trio.Nursery = field(repr=False)
    _given: "OpenProgram | None" = field(default=None, repr=False)
    _servers: "dict[str, LanguageServer]" = field(factory=dict, init=False)
    _revision: int = field(default=0, init=False)
    """The revision of the configuration that `_servers` follows."""
    _found: dict[str, LspServerConfig] = field(factory=dict, init=False)
    """The known servers that can be used here, if the project is trusted."""
    _looked_at: dict[str, float] = field(factory=dict, init=False, repr=False)
    """When the disk was last checked, by subject; see `_due`."""
    _rooted: set[str] = field(factory=set, init=False, repr=False)
    _secrets: set[str] = field(factory=set, init=False, repr=False)
    """Secret values in the environment of servers, to redact from their messages."""
    _following: trio.CancelScope | None = field(default=None, init=False, repr=False)
    _closed: bool = field(default=False, init=False)

    # ── For clients ─────────────────────────────────────────────────────────────────────────────

    def states(self) -> Mapping[str, LspClientInfo]:
        """Return the state of each server, by name."""
        return {name: server.info() for name, server in sorted(self._current().items())}

    def diagnostics(self, name: str) -> Diagnostics:
        """Return the current diagnostics of a server; raises `LspNotFound`."""
        server = self._current().get(name)
        if server is None:
            raise LspNotFound(name)
        return {} if server.session is None else server.session.documents.diagnostics()

    async def start(self, path: str) -> None:
        """Start the servers for a file, without waiting until they are ready."""
        await trio.lowlevel.checkpoint()
        if not self._current() and not self._trusted:
            return
        with suppress(OSError, ValueError, RuntimeError):
            resolved = await trio.to_thread.run_sync((self.directory / path).resolve)
            for server in await self.servers_for(resolved):
                server.ensure_started(asked=True)

    async def stop(self) -> None:
        """Stop all servers. The stop takes effect even if the client disconnects while waiting."""
        lives = [server.stop() for server in self._current().values()]
        await trio.lowlevel.checkpoint()
        for life in filter(None, lives):
            await life.ended.wait()

    # ── For agents ──────────────────────────────────────────────────────────────────────────────

    async def viewed(self, path: Path) -> str:  # noqa: ASYNC910  # no wait if no server handles the file
        """Return the diagnostics for a viewed file."""
        if not self._concerns(path):
            return ""  # noqa: ASYNC910
        from crush_trio.integrations.lsp.diagnostics import after_view

        servers = await self.servers_for(path)
        return await after_view(servers, path, self.directory) if servers else ""

    async def changed(self, path: Path) -> str:  # noqa: ASYNC910  # as above
        """Return the diagnostics for a changed file."""
        if not self._concerns(path):
            return ""  # noqa: ASYNC910
        from crush_trio.integrations.lsp.diagnostics import after_change

        servers = await self.servers_for(path)
        for other in self._current().values():
            if other not in servers and other.session is not None:
                other.session.report_change(path)
        return await after_change(servers, path, self.directory) if servers else ""

    def code_tools(self, changes: "FileChanges") -> Iterable[Tool]:
        """Return the tools that use servers; none if no server is usable (H3)."""
        if not self.usable():
            return ()
        from crush_trio.integrations.lsp.tools import code_tools

        return code_tools(self, changes)

    def usable(self) -> "list[LanguageServer]":
        """Return the servers that run or may be started, by name."""
        return [server for _, server in sorted(self._current().items()) if server.usable]

    def named(self, name: str) -> "LanguageServer | None":
        """Return a server; None if there is none of the name."""
        return self._current().get(name)

    async def startable(self) -> "list[LanguageServer]":
        """Return the usable servers whose project markers are present, by name."""
        await trio.lowlevel.checkpoint()
        return [server for server in self.usable() if await self._has_root(server.spec)]

    async def servers_for(self, path: Path) -> "list[LanguageServer]":
        """Return the servers that handle a resolved path and whose project markers are present."""
        await trio.lowlevel.checkpoint()
        if not self._within(path):
            return []
        if self._trusted and any(handles(each.filetypes, path) for each in KNOWN.values()):
            await self.discover_servers()
        found = [server for server in self.usable() if server.spec.handles(path)]
        return [server for server in found if await self._has_root(server.spec)]

    def may_handle(self, path: Path) -> bool:
        """Whether any usable server handles this type of file."""
        return any(server.spec.handles(path) for server in self.usable())

    def _concerns(self, path: Path) -> bool:
        """Whether a server could handle a file; cheap, because every view and change calls it."""
        return (bool(self._current()) or self._trusted) and self._within(path)

    def _within(self, path: Path) -> bool:
        private = self._surroundings.live.current.data_dir
        return path.is_relative_to(self.directory) and not path.is_relative_to(private)

    # ── Following the configuration ─────────────────────────────────────────────────────────────

    def _current(self) -> "dict[str, LanguageServer]":
        """Adopt the current configuration and return its servers; unchanged ones keep running."""
        config = self._surroundings.live.current
        if config.revision != self._revision and not self._closed:
            self._revision = config.revision
            self._looked_at.clear()
            self._adopt({spec.name: spec for spec in self._specs(config)})
        return self._servers

    def _adopt(self, wanted: Mapping[str, ServerSpec]) -> None:
        for name, server in list(self._servers.items()):
            if wanted.get(name) != server.spec:
                del self._servers[name]
                server.close()
        missing = [spec for name, spec in wanted.items() if name not in self._servers]
        if missing:
            from crush_trio.integrations.lsp.server import LanguageServer

            self._servers |= {spec.name: LanguageServer(spec, self) for spec in missing}

    def _specs(self, config: LoadedConfig) -> list[ServerSpec]:
        configured = [
            ServerSpec(name=name, config=_completed(name, entry), refused=_refusal(config, name))
            for name, entry in config.config.lsp.items()
        ]
        if not self._trusted:
            return configured
        taken = {spec.name for spec in configured} | {spec.config.command for spec in configured}
        return configured + [
            ServerSpec(name=name, config=entry, automatic=True)
            for name, entry in self._found.items()
            if not taken & {name, entry.command}
        ]

    @property
    def _trusted(self) -> bool:
        """Whether servers that are not configured may be started here."""
        config = self._surroundings.live.current
        return (
            bool(config.trusted)
            and config.config.options.auto_lsp is not False
            and config.trusts(config.project.directory)
        )

    async def discover_servers(self) -> None:
        """Find the known servers that can be used here, at intervals, and only if trusted."""
        await trio.lowlevel.checkpoint()
        if not self._trusted or not self._due("known servers"):
            return
        config = self._surroundings.live.current
        found = await trio.to_thread.run_sync(
            find_known_servers, self.directory, config.environment
        )
        if found != self._found:
            self._found = found
            self._revision = 0
            self._current()
            self._due("known servers")

    async def _has_root(self, spec: ServerSpec) -> bool:  # noqa: ASYNC910  # a known answer needs no wait
        """Whether the project markers of a server are present."""
        if not spec.config.root_markers or spec.automatic or spec.name in self._rooted:
            return True  # noqa: ASYNC910
        if not self._due(spec.name):
            return False  # noqa: ASYNC910
        markers = spec.config.root_markers
        found = await trio.to_thread.run_sync(has_root, self.directory, markers)
        if found:
            self._rooted.add(spec.name)
        return found

    def _due(self, what: str) -> bool:
        """Whether the disk should be checked again for a subject; if so, the caller checks now."""
        now = self.clock.monotonic()
        if now < self._looked_at.get(what, -inf) + RECHECK_PAUSE:
            return False
        self._looked_at[what] = now
        return True

    # ── For its servers ─────────────────────────────────────────────────────────────────────────

    @property
    def directory(self) -> Path:
        """The directory of the workspace."""
        return self._surroundings.directory

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self._surroundings.clock

    @property
    def open_program(self) -> "OpenProgram":
        """Opens their programs."""
        if self._given is not None:
            return self._given
        from crush_trio.integrations.lsp.connection import program_opener

        return program_opener(self.clock)

    async def prepare(self, spec: ServerSpec) -> "tuple[Command, LspServerConfig]":
        """Return the command of a server and its resolved config; raises `ServerUnavailable`."""
        from crush_trio.integrations.lsp.session import ServerUnavailable
        from crush_trio.tools.sandbox.confinement import NotConfined
        from crush_trio.tools.shell.environment import unattended_env
        from crush_trio.tools.shell.process import Command

        self._follow_changes()
        config, entry = self._surroundings.live.current, spec.config
        if not spec.automatic:
            if refused := _refusal(config, spec.name):
                raise ServerUnavailable(refused)
            try:
                entry = _completed(spec.name, (await config.resolve_lsp(spec.name)).config)
            except (ExpansionFailed, NotConfigured) as error:
                raise ServerUnavailable(str(error)) from error
        self._secrets |= searchable_secrets(entry.env.values())
        env = unattended_env({**config.environment, **entry.env})
        trusted = config.trusts(config.project.directory)
        program = await trio.to_thread.run_sync(
            lambda: program_of(entry, env, self.directory, trusted=trusted)
        )
        command = Command(argv=(program, *entry.args), working_dir=self.directory, env=env)
        if entry.sandbox:
            try:
                command = await self._surroundings.sandbox.held(command)
            except NotConfined as error:
                raise ServerUnavailable(error.strerror) from error
        return command, entry

    async def count_files(self, spec: ServerSpec) -> int:
        """Return how many files of the project a server handles; at most MOST_FILES."""
        from crush_trio.integrations.lsp.session import MOST_FILES

        return await trio.to_thread.run_sync(count_files, self.directory, spec, MOST_FILES)

    def publish(self, event: LspEvent) -> None:
        """Publish an event to the clients."""
        self._surroundings.publish(
            Fact(payload_type=PayloadType.LSP_EVENT, change=EventType.UPDATED, entity=event)
        )

    def redacted(self, text: str) -> str:
        """Return *text* without the secrets of the configuration and environment."""
        if not text:
            return ""
        from crush_trio.config.secrets.known import config_secrets, environment_secrets

        config = self._surroundings.live.current
        secrets = config_secrets(config.config) | environment_secrets(config.environment)
        return redact_text(text, secrets=secrets | self._secrets)

    def log_message(self, name: str, text: str) -> None:
        """Log a server's message for people, if `debug_lsp` is set."""
        if self._surroundings.live.current.config.options.debug_lsp:
            log.info("lsp.said", extra={"server": name, "text": self.redacted(text[:MAX_LOGGED])})

    # ── Tasks ───────────────────────────────────────────────────────────────────────────────────

    def _follow_changes(self) -> None:
        """Start the task that adopts new configurations, so that removed servers are stopped."""
        if self._following is None and not self._closed:
            self._following = trio.CancelScope()
            self.tasks.start_soon(self._follow, self._following)

    async def _follow(self, scope: trio.CancelScope) -> None:
        live, revision = self._surroundings.live, self._revision
        await trio.lowlevel.checkpoint()
        with scope, suppress(WorkspaceClosing):
            while True:
                revision = (await live.newer_than(revision)).revision
                self._current()

    def close(self) -> None:
        """Stop all servers for good."""
        self._closed = True
        self._adopt({})
        if self._following is not None:
            self._following.cancel()


def _completed(name: str, entry: LspServerConfig) -> LspServerConfig:
    """Return an entry with the defaults of the known server of that name."""
    return KNOWN[name].completed(entry) if name in KNOWN else entry


def _refusal(config: LoadedConfig, name: str) -> str:
    """Return why a configured server must not be started; empty if it may be."""
    if config.may_run("lsp", name):
        return ""
    sources = config.expander.layers.contributors("lsp", name)
    source = next(each for each in sources if not each.may_run)
    return f"not started, {source.how_to_trust}"


@asynccontextmanager
async def open_language_servers(
    surroundings: Surroundings, open_program: "OpenProgram | None" = None
) -> AsyncIterator[WorkspaceLanguageServers]:
    """Open the language servers of a workspace; when the block has been left, none of them runs."""
    async with open_hidden_nursery() as tasks:
        servers = WorkspaceLanguageServers(surroundings, tasks, open_program)
        await servers.discover_servers()
        try:
            yield servers
        finally:
            servers.close()
