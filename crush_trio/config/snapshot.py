"""`LoadedConfig`: an immutable snapshot of the configuration; and the part of it that clients see.

A change of the files makes a new snapshot with a higher revision. It holds keys as templates only.
A value is filled in on request and returned in an object whose `repr` does not show it.

`shown_config` lists the fields that clients may see, so that a new field is hidden by default.
Keys, tokens, headers, variables and bodies are never shown, not even as templates. Clients of the
Go program read `options`, `options.tui` and `providers` without checking that they exist, and send
metrics and update their catalogue over the network unless told not to (wire.md §2.2). Their model dialog
lists that catalogue, unless the user has set `disable_default_providers`. Defaults that they show are
filled in: paths, attribution, limits of listings, and the number of tokens that a model may answer with.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

from attrs import evolve, field, frozen

from crush_trio.config.context_files import (
    CONTEXT_NAMES,
    DEFAULT_INITIALIZE_AS,
    USER_NAMES,
    ContextFile,
    ContextPath,
    read_context_files,
)
from crush_trio.config.errors import ConfigInvalid, ConfigWarning, NotConfigured
from crush_trio.config.expander import Expander, key_text
from crush_trio.config.files import NotifyConfig, RetentionConfig, SandboxConfig
from crush_trio.config.known_providers import known_providers
from crush_trio.config.models import (
    EnabledProvider,
    ModelSlot,
    default_small_model,
    named_model,
    unlisted_model,
)
from crush_trio.config.redaction import REDACTED, redact_text
from crush_trio.config.rules.rules import LoadedRule
from crush_trio.config.secrets.command_env import CommandEnv
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.config.sources import (
    CONFIG_NAME,
    DataDir,
    Places,
    Project,
    Source,
    Trusted,
    is_trusted,
)
from crush_trio.config.trust.wishes import Wishes
from crush_trio.wire.config import (
    Attribution,
    Config,
    HookConfig,
    ListingLimits,
    LspServerConfig,
    McpServerConfig,
    Options,
    ProviderConfig,
    SelectedModel,
    ToolsConfig,
)
from crush_trio.wire.requests import ModelType

T = TypeVar("T")
E = TypeVar("E", ProviderConfig, McpServerConfig, LspServerConfig)


@frozen(kw_only=True)
class Resolved(Generic[T]):
    """An entry of the configuration with its templates filled in; `repr` shows only its name."""

    name: str
    config: T = field(repr=False)


@frozen(kw_only=True)
class ExpandedEnv:
    """The variables that the configuration sets, and warnings about those that failed."""

    values: Mapping[str, str] = field(factory=dict, repr=False)
    warnings: tuple[ConfigWarning, ...] = ()


@frozen(kw_only=True, eq=False)
class LoadedConfig:
    """The configuration of a workspace at one moment.

    In `config`, `providers` are the usable ones and `models` the selected ones. `env` has the
    variables that the configuration sets. `environment` is what the programs of the workspace are
    started with: the environment from the client, overridden by `env`; never that of this process
    (L31).
    """

    revision: int
    config: Config
    sources: tuple[Source, ...]
    """The files that were read, lowest first."""
    warnings: tuple[ConfigWarning, ...]
    places: Places
    project: Project
    pinned: DataDir
    trusted: Trusted = ()
    """The directories whose files the user trusts."""
    sandbox: SandboxConfig = field(factory=SandboxConfig)
    """The sandbox of commands, from the user's files only."""
    command_env: CommandEnv = field(factory=CommandEnv)
    record: bool = False
    """Whether the user's files have every run recorded."""
    notify: NotifyConfig = field(factory=NotifyConfig)
    retention: RetentionConfig = field(factory=RetentionConfig)
    rules: tuple[LoadedRule, ...] = ()
    """The permission rules of all of the user's files, lowest first."""
    wishes: Wishes | None = None
    """What the project wants and may not do, because it is not trusted."""
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

    @property
    def secrets(self) -> KnownSecrets:
        """The secrets that the workspace knows, of this snapshot and of earlier ones."""
        return self.expander.secrets

    def command_environment(self) -> dict[str, str]:
        """Return the variables that the agent's commands get: `environment` without secrets."""
        return self.command_env.apply(self.environment, self.secrets)

    # ── Origin and trust ────────────────────────────────────────────────────────────────────────

    def origin(self, *keys: str) -> Source | None:
        """Return the file that sets the value at *keys*; None if none does."""
        return self.expander.layers.origin(*keys)

    def may_run(self, *keys: str) -> bool:
        """Whether everything at *keys* comes from trusted files: a server, a hook, a variable.

        False if a file of an untrusted project sets any of it. Values of such a file that are
        ignored, as in `env`, do not count.
        """
        return all(source.may_run for source in self.expander.layers.contributors(*keys))

    def trusts(self, directory: Path) -> bool:
        """Whether the user trusts the project files in *directory*."""
        return is_trusted(directory, self.trusted)

    # ── Models ──────────────────────────────────────────────────────────────────────────────────

    def slot(self, model_type: ModelType) -> ModelSlot:
        """Return the large or the small model."""
        return self.large if model_type is ModelType.LARGE else self.small

    def named_model(self, wanted: SelectedModel) -> ModelSlot:
        """Return the *wanted* model, also one that a built-in provider does not list; or raise `NotConfigured`."""
        found = named_model(wanted, self.providers) or unlisted_model(wanted, self.providers)
        return _there("model", f"{wanted.provider}/{wanted.model}", found)

    def check_selectable(self, wanted: SelectedModel) -> None:
        """Raise `ConfigInvalid` if *wanted* could not be used, so that another model would answer.

        A built-in provider may have models that the catalogue does not list.
        """
        provider = self.providers.get(wanted.provider)
        if not wanted.provider or named_model(wanted, self.providers) is not None:
            return
        if provider is None:
            raise ConfigInvalid.at("", key_text(("providers", wanted.provider)), self._lack(wanted))
        if not (provider.known and wanted.model):
            names = ", ".join(model.id for model in provider.config.models[:20])
            problem = f"it has no model {wanted.model!r}; choose one of: {names}"
            raise ConfigInvalid.at("", key_text(("providers", wanted.provider)), problem)

    def _lack(self, wanted: SelectedModel) -> str:
        """Return what the provider of *wanted* lacks."""
        key = key_text(("providers", wanted.provider))
        for each in self.warnings:
            if each.key == key or each.key.startswith((f"{key}.", f"{key}[")):
                return each.text
        built_in = known_providers(()).get(wanted.provider)
        if built_in is not None and built_in.key:
            return f"it has no key; give it one, or set the variable {built_in.key}"
        trust = "" if self.wishes is None else f", or trust the project: {self.wishes.command}"
        return f"there is no provider of this name; describe it in crush.json{trust}"

    def default_small_model(self, provider_id: str) -> SelectedModel:
        """Return the default small model of a provider, or else the large model."""
        return default_small_model(provider_id, self.large, self.providers).shown

    # ── Values ──────────────────────────────────────────────────────────────────────────────────

    async def resolve_provider(self, provider_id: str) -> Resolved[ProviderConfig]:
        """Return a provider with its key, address and headers.

        Raises `NotConfigured`, or `ExpansionFailed` if a template cannot be filled in. Commands are
        run each time, so that a changed key is used at once.
        """
        provider = self.providers.get(provider_id)
        entry = _there("provider", provider_id, None if provider is None else provider.config)
        return await self._resolve("providers", provider_id, entry)

    async def resolve_mcp(self, name: str) -> Resolved[McpServerConfig]:
        """Return an MCP server with its templates filled in."""
        return await self._resolve(
            "mcp", name, _there("MCP server", name, self.config.mcp.get(name))
        )

    async def resolve_lsp(self, name: str) -> Resolved[LspServerConfig]:
        """Return a language server with its templates filled in."""
        entry = _there("language server", name, self.config.lsp.get(name))
        return await self._resolve("lsp", name, entry)

    async def _resolve(self, section: str, name: str, entry: E) -> Resolved[E]:
        return Resolved(name=name, config=await self.expander.expand_fields(entry, section, name))

    async def skills_paths(self) -> tuple[ContextPath, ...]:
        """Return the configured directories of skills, besides the default ones."""
        return await self._paths("skills_paths", self.config.options.skills_paths)

    async def context_files(self) -> tuple[ContextFile, ...]:
        """Return the context files of the project and of its user (I6)."""
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
        """Return the paths of an option; those of an untrusted project are confined to it."""
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


LISTED_ITEMS: Final = 1000
"""The entries of a listing that clients are told if no limit is configured."""


def shown_config(loaded: LoadedConfig) -> Config:
    """Return the part of a snapshot that clients may see; it holds no secret."""
    config = loaded.config
    tools = config.tools or ToolsConfig()
    return Config(
        schema=config.schema,
        models={slot.value: loaded.slot(slot).shown for slot in ModelType},
        recent_models=config.recent_models,
        providers={name: _provider(each) for name, each in config.providers.items()},
        mcp={name: _mcp(each) for name, each in config.mcp.items()},
        lsp={name: _lsp(each) for name, each in config.lsp.items()},
        options=_options(loaded),
        permissions=config.permissions,
        tools=evolve(tools, ls=_limits(tools.ls)),
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
    kept = (loaded.data_dir, places.user_directory, places.data_file.parent, places.workspaces)
    directories = dict.fromkeys(each.resolve() for each in kept)
    return tuple(
        each / CONFIG_NAME if workspace.is_relative_to(each) else each for each in directories
    )


def _options(loaded: LoadedConfig) -> Options:
    options, places = loaded.config.options, loaded.places
    own = places.user_directory
    usual = Attribution(trailer_style="assisted-by", generated_with=True)
    return evolve(
        options,
        context_paths=options.context_paths or CONTEXT_NAMES,
        global_context_paths=options.global_context_paths
        or tuple(str(own / name) for name in USER_NAMES),
        skills_paths=options.skills_paths
        or tuple(str(parent / "skills") for parent in (own, places.home / ".agents")),
        tui=evolve(options.tui, completions=_limits(options.tui.completions)),
        attribution=options.attribution or usual,
        data_directory=str(loaded.data_dir),
        disable_metrics=True,
        disable_provider_auto_update=True,
        initialize_as=options.initialize_as or DEFAULT_INITIALIZE_AS,
    )


def _limits(limits: ListingLimits | None) -> ListingLimits:
    """Return the limits of a listing with the defaults of the Go program filled in; depth 0 is any."""
    given = limits or ListingLimits()
    return ListingLimits(
        max_depth=given.max_depth or 0,
        max_items=LISTED_ITEMS if given.max_items is None else given.max_items,
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
        sandbox=server.sandbox,
    )


def _lsp(server: LspServerConfig) -> LspServerConfig:
    return LspServerConfig(
        disabled=server.disabled,
        command=redact_text(server.command),
        filetypes=server.filetypes,
        root_markers=server.root_markers,
        timeout=server.timeout,
        sandbox=server.sandbox,
    )


def _hook(hook: HookConfig) -> HookConfig:
    return evolve(hook, command=redact_text(hook.command))


def _address(url: str) -> str:
    """Return an address without login and query, which may hold credentials."""
    return redact_text(_QUERY.sub("", _LOGIN.sub("", url)))
