"""The configuration as clients see it.

What may be shown is listed, not what may not: a field that is new tomorrow is hidden until somebody
has thought about it. Keys, tokens, headers, variables and bodies are never shown, not even as templates.

Clients read `options` and `options.tui`, `providers`, `mcp` and `lsp` without looking whether they are
there, send measurements and load a catalogue of their own unless told not to (wire.md §2.2).
"""

import re
from typing import Final

from attrs import evolve

from crush_trio.config.loaded import LoadedConfig
from crush_trio.config.project import DEFAULT_INITIALIZE_AS
from crush_trio.config.redaction import redact_text
from crush_trio.wire.config import (
    Config,
    HookConfig,
    LspServerConfig,
    McpServerConfig,
    Options,
    ProviderConfig,
)

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
