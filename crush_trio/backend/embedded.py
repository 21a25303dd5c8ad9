"""`open_agent`: the agent of a workspace inside a program, without server, socket or configuration files.

It is a hosted workspace like those of a server, with the same runs, permissions, sub-agents, summaries and
stores. What clients do over HTTP is done here: the program's tools and model are put in place, and its
callbacks answer permission requests and questions (`Answers`).
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias

import trio
from attrs import define, field

from crush_trio.agent.function_tool import as_tools
from crush_trio.agent.part_checks import check_provider, check_values
from crush_trio.agent.turn.title import shorten_prompt
from crush_trio.backend.answers import Answer, Answers, Permit, check_callbacks
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.run_handle import AgentRun
from crush_trio.backend.settings import Terms, WorkspacePlan, WorkspaceSettings, resolve_key
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.clock import RandomIds
from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.fixed import FixedConfig, load_fixed
from crush_trio.config.known_providers import DEMO_PROVIDER, known_providers, unsupported_key
from crush_trio.config.models import DEMO_CHOICE
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Places
from crush_trio.errors import PathInvalid
from crush_trio.events.cursor import Cursor
from crush_trio.integrations.base import (
    Integrations,
    NoLanguageServers,
    NoMcpServers,
    Surroundings,
)
from crush_trio.integrations.lsp.servers import open_language_servers
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.nursery import check_trio, open_hidden_nursery
from crush_trio.providers.base import Provider
from crush_trio.providers.catalog import catalog_provider, catalog_providers
from crush_trio.providers.demo.provider import DemoProvider
from crush_trio.runtime.outcome import Submission
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.store.open import StoreSettings, StoreUnknown, import_store
from crush_trio.tools.base import Tool
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.config import CatalogProvider, SelectedModel
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import NO_CLIENT, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunKind
from crush_trio.wire.views import Session

ToolLike: TypeAlias = Tool | Callable[..., Awaitable[object]]
"""A tool for `open_agent`: an object of the `Tool` protocol, or an async function with a docstring."""

OWN: Final = "own"
"""The id of a provider object, and of its model, in the configuration of an agent."""

_WINDOW: Final = 200_000
"""Tokens that the model of a provider object is taken to read; `config` can say otherwise."""

_TOKEN: Final = "CRUSH_TRIO_TOKEN"

_BUILT_IN: Final = (
    *("bash", "job_output", "job_kill", "view", "edit", "multiedit", "write", "glob", "grep", "ls"),
    *("fetch", "download", "todos", "crush_info", "crush_logs", "agent"),
)
"""The tools that `builtin_tools=False` leaves out. `question` depends on the callback alone."""

_NO_MODEL: Final = (
    'no model: set a key such as ANTHROPIC_API_KEY or OPENAI_API_KEY, name a model with provider="anthropic/…", '
    'pass an object with a method stream, or use the offline demo with provider="demo"'
)


# ── The agent ───────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Agent:
    """An agent in this program. Made by `open_agent`."""

    workspace: HostedWorkspace
    """Everything else: store, event log, runs, configuration."""
    _policy: PermissionPolicy = field(repr=False)
    _interactive: bool = field(repr=False)

    async def ask(self, prompt: str, *, session: Session | SessionId | None = None) -> str:
        """Return the answer to *prompt*; raise `RunFailed` if there is none.

        Without a *session* it is a conversation of its own, so any number of asks can run at once.
        Those of one session wait for each other. Cancelling the ask cancels its run and waits for its end.
        """
        return await self._finish(await self._accept(prompt, session))

    async def summarize(self, session: Session | SessionId) -> None:
        """Summarise a conversation, so that it fits the model's context again; raise `RunFailed`.

        It happens by itself when the context is nearly full.
        """
        await self._finish(await self._accept("", session, RunKind.SUMMARIZE))

    async def _finish(self, run: AgentRun) -> str:
        """Wait for a run that nothing else waits for: a cancel of the caller cancels it."""
        try:
            return await run.text()
        finally:
            if not run.ended:
                with trio.CancelScope(shield=True):
                    await run.cancel().settled()

    async def submit(self, prompt: str, *, session: Session | SessionId | None = None) -> AgentRun:
        """Start a run and return its handle. By then the prompt is stored, and the run will end.

        The run does not depend on the caller: it goes on until it ends or is cancelled, at the latest
        with the block of `open_agent`.
        """
        run = await self._accept(prompt, session)
        await run.stored()
        return run

    async def _accept(
        self,
        prompt: str,
        session: Session | SessionId | None,
        kind: RunKind = RunKind.PROMPT,
    ) -> AgentRun:
        """Accept a prompt in *session*, or in a new one; there is no checkpoint after that."""
        if not isinstance(prompt, str):
            raise TypeError(f"the prompt is a {type(prompt).__name__}: write text")
        await trio.lowlevel.checkpoint()
        workspace = self.workspace
        if session is None:
            session = await self.new_session(shorten_prompt(prompt) or "conversation")
        elif not isinstance(session, Session):
            session = await workspace.store.session(session)
        begin = workspace.events.position
        accepted = workspace.send(
            Submission(
                session_id=session.id,
                prompt=prompt,
                kind=kind,
                run_id=RunId(workspace.ids.new()),
                permissions=self._policy,
                interactive=self._interactive,
            )
        )
        return AgentRun(accepted, workspace, begin)

    def cancel(self, session: Session | SessionId) -> StopReceipt:
        """Cancel every run that the session has now; see `Workspace.cancel`."""
        return self.workspace.runs.cancel(_id_of(session))

    async def new_session(self, title: str = "conversation") -> Session:
        """Begin a conversation."""
        return await self.workspace.create_session(title)

    async def sessions(self) -> list[Session]:
        """Return the conversations, also those of earlier programs if the store is durable."""
        return await self.workspace.store.sessions()

    async def messages(self, session: Session | SessionId) -> list[Message]:
        """Return what was said in a conversation, oldest first; tool calls and results included."""
        return await self.workspace.store.messages(_id_of(session))

    async def delete_session(self, session: Session | SessionId) -> None:
        """Cancel the runs of a conversation and delete it."""
        await self.workspace.delete_session(_id_of(session))

    def events(self) -> Cursor:
        """Return a reader of everything that happens from now on: `async for batch in agent.events()`."""
        return self.workspace.events.cursor()


def _id_of(session: Session | SessionId) -> SessionId:
    return session.id if isinstance(session, Session) else session


@asynccontextmanager
async def open_agent(
    *,
    tools: Iterable[ToolLike] = (),
    provider: Provider | str | None = None,
    store: str | PathLike[str] | StoreSettings = "memory:",
    permit: Permit | bool = False,
    answer: Answer | None = None,
    instructions: str = "",
    directory: str | PathLike[str] | None = None,
    builtin_tools: bool = True,
    config: Mapping[str, Json] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Agent]:
    """Open an agent in this program for the length of the block. Leaving cancels its runs.

    *tools* are added to the built-in ones, which *builtin_tools* can leave out. *provider* is the model:
    an object of the `Provider` protocol, a name such as `"anthropic/claude-sonnet-4-5"`, `"anthropic"` or
    `"demo"`, or None for the first one whose key the *environment* has. *store* is `"memory:"`,
    `"sqlite:"`, or the directory in which SQLite keeps the data.

    *permit* is asked before a tool changes anything: a function, sync or async, that takes a
    `PermissionRequest` and returns True, False or a `GrantScope`. False refuses everything that would be
    asked, True allows it. *answer* takes a `Question` of the model and returns the answer; without it the
    model cannot ask. A callback that raises ends its run as errored.

    *directory* is where the tools work, by default the current one. *config* has values as in
    `crush.json`; no file is read.
    """
    check_trio("open_agent")
    own = as_tools(tools)
    check_callbacks(permit, answer)
    check_values(instructions, directory, builtin_tools, config, environment)
    environment = os.environ if environment is None else environment
    disabled = () if builtin_tools else _BUILT_IN
    model = _Model.of(provider, instructions, _with_disabled(config or {}, disabled, own))
    settings, data_dir = _store_of(store)
    import_store(settings)
    key = await resolve_key(str(directory or "."))
    if not await trio.Path(key).is_dir():
        raise PathInvalid(f"{key} is no directory; make it, or give another one as directory")
    plan = WorkspacePlan(
        id=WorkspaceId(RandomIds().new()),
        key=key,
        path=key,
        terms=Terms(yolo=permit is True, data_dir=data_dir),
        created_by=NO_CLIENT,
    )
    workspaces = WorkspaceSettings(
        environment={k: v for k, v in environment.items() if not k.startswith(_TOKEN)},
        extra_tools=lambda _bench: own,
        providers=model.own,
        open_config=model.open_config,
        open_integrations=_open_integrations,
        store=settings,
    )
    asked = callable(permit)
    policy = PermissionPolicy(mode=PermissionMode.ASK if asked else PermissionMode.DENY)
    async with open_hosted_workspace(plan, workspaces) as workspace:
        async with open_hidden_nursery() as nursery:
            answers, attendance = Answers(workspace.asks, permit, answer), workspace.asks.attendance
            with attendance.present():
                attendance.set_people(1)
                # The cursor begins here, so nothing is missed if the task starts later.
                nursery.start_soon(answers.serve, workspace.events.cursor(), nursery)  # noqa: ASYNC113
                yield Agent(workspace, policy, answer is not None)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _open_integrations(surroundings: Surroundings) -> AsyncIterator[Integrations]:
    """Open the MCP servers and language servers that the configuration names; skills would be files."""
    config = surroundings.live.current.config
    async with (
        open_mcp_servers(surroundings) if config.mcp else nullcontext(NoMcpServers()) as mcp,
        open_language_servers(surroundings)
        if config.lsp
        else nullcontext(NoLanguageServers()) as lsp,
    ):
        yield Integrations(mcp=mcp, lsp=lsp)


def _store_of(store: str | PathLike[str] | StoreSettings) -> tuple[StoreSettings, str]:
    """Return the settings of a store, and its data directory if that is given."""
    match store:
        case StoreSettings():
            return store, ""
        case PathLike():
            return StoreSettings("sqlite:"), str(Path(store).absolute())
        case str() if ":" not in store:
            raise StoreUnknown(f"{store!r} is no URL; for a directory write store=Path({store!r})")
        case str():
            return StoreSettings(store), ""
    raise TypeError(
        f"store is a {type(store).__name__}: write 'memory:', 'sqlite:', or a Path for the data"
    )


# ── The model ───────────────────────────────────────────────────────────────────────────────────


@define(eq=False, kw_only=True)
class _Model:
    """The model of an agent, and the configuration that selects it."""

    wanted: SelectedModel | None
    """The model that was named; None for what the environment has."""
    own: Mapping[str, Provider]
    instructions: str = field(repr=False)
    values: Mapping[str, Json] = field(repr=False)

    @classmethod
    def of(
        cls, provider: Provider | str | None, instructions: str, values: Mapping[str, Json]
    ) -> "_Model":
        wanted: SelectedModel | None = None
        own: dict[str, Provider] = {}
        if provider == DEMO_PROVIDER:
            wanted, own = DEMO_CHOICE, {DEMO_PROVIDER: DemoProvider()}
        elif isinstance(provider, str):
            wanted = _named(provider)
        elif provider is not None:
            wanted = SelectedModel(provider=OWN, model=OWN)
            own = {OWN: check_provider(OWN, provider)}
        return cls(wanted=wanted, own=own, instructions=instructions, values=values)

    @asynccontextmanager
    async def open_config(self, places: Places) -> AsyncIterator[FixedConfig]:
        """Open the configuration; raises `ConfigInvalid` if it has no model, or not the one that was named."""
        known = (CatalogProvider(id=name, name=name) for name in self.own)
        load = partial(load_fixed, places, catalogue=(*catalog_providers(), *known))
        found, wanted = await load(values=self.values), self.wanted
        if wanted is None:
            wanted = found.large.selected
            if wanted == DEMO_CHOICE:
                hint = unsupported_key(places.environment)
                raise ConfigInvalid(f"{_NO_MODEL}. {hint}" if hint else _NO_MODEL)
        elif not self.own and wanted.provider not in found.providers:
            self._refuse(wanted, found)
        config = await load(values=self._selecting(wanted))
        config.check_selectable(wanted)
        yield FixedConfig(config)

    def _refuse(self, wanted: SelectedModel, found: LoadedConfig) -> None:
        """Raise `ConfigInvalid` for a provider that is not known, or that has no key."""
        known = known_providers(catalog_providers())
        if wanted.provider in known or wanted.provider in _section(self.values, "providers"):
            found.check_selectable(wanted)
        raise ConfigInvalid(
            f"there is no provider {wanted.provider!r}: name one of {', '.join(known)}, or describe it with "
            'config={"providers": {…}}'
        )

    def _selecting(self, wanted: SelectedModel) -> Mapping[str, Json]:
        """Return the configuration with *wanted* as its model, and the program's instructions for it."""
        provided, models = _section(self.values, "providers"), _section(self.values, "models")
        entry: dict[str, Json] = {"system_prompt_prefix": self.instructions}
        if self.own:
            model = {"id": wanted.model, "name": wanted.model, "context_window": _WINDOW}
            entry["models"] = [model]
        chosen = {"provider": wanted.provider, "model": wanted.model}
        return {
            **self.values,
            "providers": {
                **provided,
                wanted.provider: {**entry, **_section(provided, wanted.provider)},
            },
            "models": {"large": chosen, **models},
        }


def _with_disabled(
    values: Mapping[str, Json], disabled: Iterable[str], tools: Iterable[Tool]
) -> Mapping[str, Json]:
    """Return the configuration without the tools in *disabled*, unless the program brings one of that name."""
    own = {tool.name for tool in tools}
    options = _section(values, "options")
    said = options.get("disabled_tools")
    said = [] if said is None else said
    left_out = [each for each in disabled if each not in own]
    if not left_out or not isinstance(
        said, list | tuple
    ):  # the check of types refuses what is no list
        return values
    return {**values, "options": {**options, "disabled_tools": [*said, *left_out]}}


def _section(values: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    """Return an object of the configuration; what is no object is left for the check of types."""
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _named(name: str) -> SelectedModel:
    """Return the model of a name: `provider/model`, or `provider` for its default."""
    provider, _, model = name.partition("/")
    known = catalog_provider(provider)
    if not model and known is not None:
        model = known.default_large_model_id
    if not provider or not model:
        raise ConfigInvalid(
            f'provider={name!r} names no model: write "provider/model", such as "anthropic/…", or "demo"'
        )
    return SelectedModel(provider=provider, model=model)
