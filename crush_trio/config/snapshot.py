"""A configuration at one moment: whole, checked and immutable.

A snapshot never changes; a change of the files makes a new one with a higher revision. It holds keys
only as the templates they were written as. Whoever needs a value asks for it, and gets it in a thing
whose `repr` is silent about it.

The configuration as clients see it.

What may be shown is listed, not what may not: a field that is new tomorrow is hidden until somebody
has thought about it. Keys, tokens, headers, variables and bodies are never shown, not even as templates.

Clients read `options` and `options.tui`, `providers`, `mcp` and `lsp` without looking whether they are
there, send measurements and load a catalogue of their own unless told not to (wire.md §2.2).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

from attrs import evolve, field, frozen

from crush_trio.config.context_files import (
    DEFAULT_INITIALIZE_AS,
    ContextFile,
    ContextPath,
    read_context_files,
)
from crush_trio.config.errors import NotConfigured, Notice
from crush_trio.config.expander import Expander
from crush_trio.config.models import EnabledProvider, ModelSlot, default_small_model, named_model
from crush_trio.config.redaction import REDACTED, redact_text
from crush_trio.config.sources import (
    CONFIG_NAME,
    DataDir,
    Places,
    Project,
    Source,
    Trusted,
    is_trusted,
)
from crush_trio.wire.config import (
    Config,
    HookConfig,
    LspServerConfig,
    McpServerConfig,
    Options,
    ProviderConfig,
    SelectedModel,
)
from crush_trio.wire.requests import ModelType

T = TypeVar("T")
E = TypeVar("E", ProviderConfig, McpServerConfig, LspServerConfig)


@frozen(kw_only=True)
class Resolved(Generic[T]):
    """An entry of the configuration with its templates filled in; it shows nothing but its name."""

    name: str
    config: T = field(repr=False)


@frozen(kw_only=True)
class ExpandedEnv:
    """What the configuration sets for the programs of a workspace, and what it failed to set."""

    values: Mapping[str, str] = field(factory=dict, repr=False)
    notices: tuple[Notice, ...] = ()


@frozen(kw_only=True, eq=False)
class LoadedConfig:
    """Everything a workspace is configured to be.

    In `config`, `providers` are those that can be used and `models` those that are in use. `env` is
    what the configuration sets, `environment` what the programs of the workspace are started with:
    the environment that was handed in, and `env` over it. Neither is ever that of this process (L31).
    """

    revision: int
    config: Config
    sources: tuple[Source, ...]
    """The files that were read, lowest first."""
    notices: tuple[Notice, ...]
    places: Places
    project: Project
    pinned: DataDir
    trusted: Trusted = ()
    """The directories whose files the user trusts."""
    expanded_env: ExpandedEnv = field(repr=False)
    large: ModelSlot
    small: ModelSlot
    providers: Mapping[str, EnabledProvider] = field(repr=False)
    expander: Expander = field(repr=False)

    @property
    def data_dir(self) -> Path:
        """The data directory, absolute (I2)."""
        return self.pinned.path

    @property
    def env(self) -> Mapping[str, str]:
        """The variables that the configuration sets; an untrusted project sets none."""
        return self.expanded_env.values

    @property
    def environment(self) -> Mapping[str, str]:
        """All variables that the programs of the workspace are started with."""
        return self.expander.environment

    # ── Whose word it is ────────────────────────────────────────────────────────────────────────

    def origin(self, *keys: str) -> Source | None:
        """Return the file that has the last word about what is at *keys*; None if none says anything."""
        return self.expander.layers.origin(*keys)

    def may_run(self, *keys: str) -> bool:
        """Whether everything at *keys* is the user's word: a server, a hook, a variable.

        False as soon as a file has a say that came with a project the user does not trust. Where
        such a file has no say at all, as in `env`, what stands in it does not count.
        """
        return all(source.may_run for source in self.expander.layers.contributors(*keys))

    def trusts(self, directory: Path) -> bool:
        """Whether the user has said to trust what came with a project into *directory*."""
        return is_trusted(directory, self.trusted)

    # ── Models ──────────────────────────────────────────────────────────────────────────────────

    def slot(self, model_type: ModelType) -> ModelSlot:
        """Return the large or the small model."""
        return self.large if model_type is ModelType.LARGE else self.small

    def named_model(self, wanted: SelectedModel) -> ModelSlot:
        """Return a model that somebody asks for by name; raises `NotConfigured` if there is none."""
        return _there(
            "model", f"{wanted.provider}/{wanted.model}", named_model(wanted, self.providers)
        )

    def default_small_model(self, provider_id: str) -> SelectedModel:
        """Return the small model that goes with a provider, or else the large one there is."""
        return default_small_model(provider_id, self.large, self.providers)

    # ── Values ──────────────────────────────────────────────────────────────────────────────────

    async def resolve_provider(self, provider_id: str) -> Resolved[ProviderConfig]:
        """Return a provider with its key, address and headers.

        Raises `NotConfigured`, or `ExpansionFailed` if a template has no value. Commands are run
        each time, so a key that changes is a new one the next time it is asked for.
        """
        provider = self.providers.get(provider_id)
        entry = _there("provider", provider_id, None if provider is None else provider.config)
        return await self._resolve("providers", provider_id, entry)

    async def resolve_mcp(self, name: str) -> Resolved[McpServerConfig]:
        """Return an MCP server as it is to be started or reached."""
        return await self._resolve(
            "mcp", name, _there("MCP server", name, self.config.mcp.get(name))
        )

    async def resolve_lsp(self, name: str) -> Resolved[LspServerConfig]:
        """Return a language server as it is to be started."""
        entry = _there("language server", name, self.config.lsp.get(name))
        return await self._resolve("lsp", name, entry)

    async def _resolve(self, section: str, name: str, entry: E) -> Resolved[E]:
        return Resolved(name=name, config=await self.expander.expand_fields(entry, section, name))

    async def skills_paths(self) -> tuple[ContextPath, ...]:
        """Return where skills are to be looked for besides the usual places."""
        return await self._paths("skills_paths", self.config.options.skills_paths)

    async def context_files(self) -> tuple[ContextFile, ...]:
        """Return the texts that tell an agent about the project and its user (I6)."""
        options = self.config.options
        configured = await self._paths("context_paths", options.context_paths)
        everywhere = await self._paths("global_context_paths", options.global_context_paths)
        return await read_context_files(
            self.project,
            configured=configured,
            user_directory=self.places.user_directory,
            everywhere=everywhere,
        )

    async def _paths(  # noqa: ASYNC910 - only commands are waited for
        self, option: str, texts: tuple[str, ...]
    ) -> tuple[ContextPath, ...]:
        """Return the paths of an option; one of an untrusted project must stay within the project."""
        found = []
        for index, text in enumerate(texts):
            keys = ("options", option)
            if text.startswith("$"):
                text = await self.expander.expand(text, *keys, index)
            if text:
                path = self.project.directory / self.places.expand_home(text)
                found.append(ContextPath(path=path, confined=not self.may_run(*keys)))
        return tuple(found)  # noqa: ASYNC910


def _there(what: str, name: str, entry: T | None) -> T:
    if entry is None:
        raise NotConfigured(f"{what} {name!r}")
    return entry


_LOGIN: Final = re.compile(r"(?<=//)[^/@]*@")
_QUERY: Final = re.compile(r"[?#].*", re.DOTALL)


def shown_config(loaded: LoadedConfig) -> Config:
    """Return what clients may know of a snapshot; it holds no secret."""
    config = loaded.config
    return Config(
        schema=config.schema,
        models=config.models,
        recent_models=config.recent_models,
        providers={name: _provider(each) for name, each in config.providers.items()},
        mcp={name: _mcp(each) for name, each in config.mcp.items()},
        lsp={name: _lsp(each) for name, each in config.lsp.items()},
        options=_options(loaded),
        permissions=config.permissions,
        tools=config.tools,
        hooks={event: tuple(map(_hook, hooks)) for event, hooks in config.hooks.items()},
    )


def told_config(loaded: LoadedConfig) -> Config:
    """Return what clients are shown, and which keys and variables are set; without their values."""
    shown, config = shown_config(loaded), loaded.config
    keyed = {name for name, each in config.providers.items() if each.api_key or each.oauth}
    return evolve(
        shown,
        env=dict.fromkeys(loaded.env, REDACTED),
        providers={
            name: evolve(each, api_key=REDACTED) if name in keyed else each
            for name, each in shown.providers.items()
        },
    )


def private_paths(loaded: LoadedConfig) -> tuple[Path, ...]:
    """Return the resolved directories that no model may read without asking.

    These are the data directory and the user's own configuration. If one of them contains the
    workspace itself, only its configuration file, which holds the keys, is private: otherwise there
    would be nothing to work with.
    """
    workspace = loaded.project.directory.resolve()
    places = loaded.places
    kept = (loaded.data_dir, places.user_directory, places.data_file.parent)
    directories = dict.fromkeys(each.resolve() for each in kept)
    return tuple(
        each / CONFIG_NAME if workspace.is_relative_to(each) else each for each in directories
    )


def _options(loaded: LoadedConfig) -> Options:
    options = loaded.config.options
    return evolve(
        options,
        data_directory=str(loaded.data_dir),
        disable_metrics=True,
        disable_provider_auto_update=True,
        disable_default_providers=True,
        initialize_as=options.initialize_as or DEFAULT_INITIALIZE_AS,
    )


def _provider(provider: ProviderConfig) -> ProviderConfig:
    return ProviderConfig(
        id=provider.id,
        name=provider.name,
        base_url=_address(provider.base_url),
        type=provider.type,
        disable=provider.disable,
        flat_rate=provider.flat_rate,
        discover_models=provider.discover_models,
        models=provider.models,
    )


def _mcp(server: McpServerConfig) -> McpServerConfig:
    return McpServerConfig(
        type=server.type,
        command=redact_text(server.command),
        url=_address(server.url),
        disabled=server.disabled,
        disabled_tools=server.disabled_tools,
        enabled_tools=server.enabled_tools,
        timeout=server.timeout,
    )


def _lsp(server: LspServerConfig) -> LspServerConfig:
    return LspServerConfig(
        disabled=server.disabled,
        command=redact_text(server.command),
        filetypes=server.filetypes,
        root_markers=server.root_markers,
        timeout=server.timeout,
    )


def _hook(hook: HookConfig) -> HookConfig:
    return evolve(hook, command=redact_text(hook.command))


def _address(url: str) -> str:
    """Return an address without what could let somebody in: a login, a query."""
    return redact_text(_QUERY.sub("", _LOGIN.sub("", url)))
