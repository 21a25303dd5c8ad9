"""Reports how a workspace is set up, in a fixed order and without secrets.

What is shown is chosen field by field: a key of the configuration that nobody thought of here does not
appear. What appears is redacted all the same, because a command line or an error may quote a secret.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import orjson
from attrs import define, field, frozen
from trio.lowlevel import checkpoint

from crush_trio.config.redaction import is_secret_name, redact_text, worth_finding
from crush_trio.tools.arguments import read_arguments
from crush_trio.tools.base import ToolCall, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.wire.catalog import SelectedModel
from crush_trio.wire.codec import unstructure
from crush_trio.wire.config import Config, HookConfig, McpServerConfig, ProviderConfig
from crush_trio.wire.fields import Json
from crush_trio.wire.integrations import LspClientInfo, McpClientInfo, SkillState

T = TypeVar("T")


@frozen(kw_only=True)
class InfoReport:
    """What a workspace knows about itself at one moment."""

    version: str
    directory: str
    config: Config = field(repr=False)
    config_files: tuple[str, ...] = ()
    """The files that the configuration was read from, the strongest last."""
    notices: tuple[str, ...] = ()
    """What loading the configuration had to say."""
    tools: tuple[str, ...] = ()
    """The tools that the model has."""
    skip_permissions: bool = False
    mcp: tuple[McpClientInfo, ...] = ()
    lsp: tuple[LspClientInfo, ...] = ()
    skills: tuple[SkillState, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Texts that must not appear, besides those in `config`."""


@frozen(kw_only=True)
class CrushInfoArguments:
    """Nothing: there is one report."""


@define(eq=False)
class CrushInfoTool(BuiltIn):
    """The tool `crush_info`. `report` is called for each use of it."""

    name = "crush_info"
    parallel = True
    arguments = CrushInfoArguments

    report: Callable[[], InfoReport]

    async def run(self, call: ToolCall) -> ToolResult:
        """Report."""
        read_arguments(call.input, CrushInfoArguments)
        await checkpoint()
        return ToolResult(content=written(self.report()))


def known_secrets(config: Config) -> frozenset[str]:
    """Return the texts in a configuration that are kept under a secret's name."""
    return worth_finding(_secrets(unstructure(config), False))


def secret_variables(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values in an environment that are kept under a secret's name."""
    return worth_finding(value for name, value in environment.items() if is_secret_name(name))


def _secrets(value: Json, secret: bool) -> Iterator[str]:
    if isinstance(value, str) and secret:
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, secret or is_secret_name(str(name)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, secret)


# ── The report ──────────────────────────────────────────────────────────────────────────────────


def written(report: InfoReport) -> str:
    """Return a report as text: a section per subject, a line per thing, sorted by name."""
    config = report.config
    sections = {
        "workspace": [
            f"directory = {report.directory}",
            f"version = {report.version}",
            *(f"config_file = {path}" for path in report.config_files),
        ],
        "notices": [_words(notice) for notice in report.notices],
        "models": _lines(config.models, _model),
        "providers": _lines(config.providers, _provider),
        "mcp": _lines(config.mcp, _mcp) + _states(report.mcp),
        "lsp": _lines(config.lsp, lambda server: _words(server.command, disabled=server.disabled))
        + _states(report.lsp),
        "skills": sorted(f"{skill.name} = {_skill(skill)}" for skill in report.skills),
        "hooks": [
            f"{event} = {_hook(hook)}"
            for event in sorted(config.hooks)
            for hook in config.hooks[event]
        ],
        "permissions": _permissions(report),
        "tools": [
            f"available = {', '.join(sorted(report.tools))}",
            f"disabled = {', '.join(sorted(config.options.disabled_tools))}",
        ],
        "options": _options(config),
        "env": [", ".join(sorted(config.env))] if config.env else [],
    }
    blocks = ["\n".join((f"[{name}]", *lines)) for name, lines in sections.items() if lines]
    return redact_text("\n\n".join(blocks), secrets=known_secrets(config) | report.secrets)


def _lines(named: Mapping[str, T], show: Callable[[T], str]) -> list[str]:
    return [f"{name} = {show(named[name])}" for name in sorted(named)]


def _words(*said: str, disabled: bool = False) -> str:
    """Return what there is to say about a thing, as one line."""
    words = [*said, "disabled" if disabled else ""]
    return ", ".join(" ".join(word.split()) for word in words if word)


def _model(chosen: SelectedModel) -> str:
    effort = f"reasoning effort {chosen.reasoning_effort}" if chosen.reasoning_effort else ""
    return _words(f"{chosen.provider}/{chosen.model}", effort, "thinks" if chosen.think else "")


def _provider(provider: ProviderConfig) -> str:
    has_key = provider.api_key or provider.oauth is not None
    return _words(
        provider.type,
        provider.base_url,
        f"{len(provider.models)} models",
        "has a key" if has_key else "has no key",
        disabled=provider.disable,
    )


def _mcp(server: McpServerConfig) -> str:
    return _words(server.type.value, server.command or server.url, disabled=server.disabled)


def _states(clients: Iterable[McpClientInfo | LspClientInfo]) -> list[str]:
    """Return how the servers do, which is another matter than how they are configured."""
    lines = []
    for client in sorted(clients, key=lambda each: each.name):
        tools = f"{client.tool_count} tools" if isinstance(client, McpClientInfo) else ""
        state = client.state.name.lower().replace("_", " ")
        lines.append(f"{client.name} is {_words(state, tools, client.error)}")
    return lines


def _skill(skill: SkillState) -> str:
    return _words(skill.path, skill.state.name.lower(), skill.error)


def _hook(hook: HookConfig) -> str:
    matcher = f"for {hook.matcher}" if hook.matcher else ""
    return _words(hook.name, hook.command, matcher)


def _permissions(report: InfoReport) -> list[str]:
    allowed = report.config.permissions.allowed_tools if report.config.permissions else ()
    return [
        f"skip = {'yes' if report.skip_permissions else 'no'}",
        f"allowed_tools = {', '.join(sorted(allowed))}",
    ]


def _options(config: Config) -> list[str]:
    """Return the options that are set, except those that have a section of their own or only a look."""
    options = unstructure(config.options)
    return [
        f"{name} = {orjson.dumps(options[name]).decode()}"
        for name in sorted(options)
        if name not in {"tui", "disabled_tools"}
    ]
