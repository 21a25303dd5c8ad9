"""The tools `crush_info` and `crush_logs`.

`crush_info` reports the setup of a workspace in a fixed order. The fields are chosen one by one, so a
configuration key that is not listed here does not appear. The text is redacted in addition, because a
command line or an error may contain a secret.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Annotated, Final, TypeVar

import orjson
import trio
from attrs import define, field, frozen
from trio.lowlevel import checkpoint

from crush_trio.config.files import SandboxConfig
from crush_trio.config.redaction import redact_text
from crush_trio.config.secrets.known import config_secrets
from crush_trio.tools.base import About, BuiltIn, ToolCall, ToolResult, read_arguments
from crush_trio.tools.recent_logs import RecentLogs
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.wire.codec import unstructure
from crush_trio.wire.config import (
    Config,
    HookConfig,
    McpServerConfig,
    ProviderConfig,
    SelectedModel,
)
from crush_trio.wire.integrations import LspClientInfo, McpClientInfo, SkillState

T = TypeVar("T")


@frozen(kw_only=True)
class InfoReport:
    """The setup and state of a workspace at one moment."""

    version: str
    directory: str
    config: Config = field(repr=False)
    config_files: tuple[str, ...] = ()
    """The files that the configuration was read from; later ones override earlier ones."""
    notices: tuple[str, ...] = ()
    """Configuration warnings."""
    tools: tuple[str, ...] = ()
    """The tools that the model may call."""
    skip_permissions: bool = False
    mcp: tuple[McpClientInfo, ...] = ()
    lsp: tuple[LspClientInfo, ...] = ()
    skills: tuple[SkillState, ...] = ()
    sandbox: SandboxConfig = field(factory=SandboxConfig)
    sandbox_kind: str = SandboxKind.NONE.value
    """The sandbox that holds commands."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Texts to redact, besides the secrets in `config`."""


@frozen(kw_only=True)
class CrushInfoArguments:
    """No arguments."""


@define(eq=False)
class CrushInfoTool(BuiltIn):
    """The tool `crush_info`. `report` is called for each call, after `ready`."""

    name = "crush_info"
    parallel = True
    arguments = CrushInfoArguments

    report: Callable[[], InfoReport]
    ready: Callable[[], Awaitable[None]] = checkpoint

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the report."""
        read_arguments(call.input, CrushInfoArguments)
        await self.ready()
        return ToolResult(content=format_report(self.report()))


# ── The report ──────────────────────────────────────────────────────────────────────────────────


def format_report(report: InfoReport) -> str:
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
        "sandbox": _sandbox(report),
        "tools": [
            f"available = {', '.join(sorted(report.tools))}",
            f"disabled = {', '.join(sorted(config.options.disabled_tools))}",
        ],
        "options": _options(config),
        "env": [", ".join(sorted(config.env))] if config.env else [],
    }
    blocks = ["\n".join((f"[{name}]", *lines)) for name, lines in sections.items() if lines]
    return redact_text("\n\n".join(blocks), secrets=config_secrets(config) | report.secrets)


def _lines(named: Mapping[str, T], show: Callable[[T], str]) -> list[str]:
    return [f"{name} = {show(named[name])}" for name in sorted(named)]


def _words(*said: str, disabled: bool = False) -> str:
    """Join the parts that are not empty to one line."""
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
    """Return the states of the servers, a line each."""
    lines = []
    for client in sorted(clients, key=lambda each: each.name):
        tools = f"{client.tool_count} tools" if isinstance(client, McpClientInfo) else ""
        state = client.state.name.lower().replace("_", " ")
        lines.append(f"{client.name} is {_words(state, tools, client.error)}")
    return lines


def _skill(skill: SkillState) -> str:
    return _words(skill.path, skill.state.name.lower(), skill.error or skill.warning)


def _hook(hook: HookConfig) -> str:
    matcher = f"for {hook.matcher}" if hook.matcher else ""
    return _words(hook.name, hook.command, matcher)


def _permissions(report: InfoReport) -> list[str]:
    allowed = report.config.permissions.allowed_tools if report.config.permissions else ()
    return [
        f"skip = {'yes' if report.skip_permissions else 'no'}",
        f"allowed_tools = {', '.join(sorted(allowed))}",
    ]


def _sandbox(report: InfoReport) -> list[str]:
    chosen = report.sandbox
    return [
        f"holds = {report.sandbox_kind}",
        f"mode = {chosen.mode.value}",
        f"network = {chosen.network.value}",
        f"commands = {chosen.commands.value}",
        *(f"writable = {path}" for path in chosen.writable),
        *(f"hidden = {path}" for path in chosen.hidden),
    ]


def _options(config: Config) -> list[str]:
    """Return the options that are set, without those shown elsewhere and those of the terminal."""
    options = unstructure(config.options)
    return [
        f"{name} = {orjson.dumps(options[name]).decode()}"
        for name in sorted(options)
        if name not in {"tui", "disabled_tools"}
    ]


DEFAULT_LINES: Final = 50
MAX_LINES: Final = 100


@frozen(kw_only=True)
class CrushLogsArguments:
    """The arguments of `crush_logs`."""

    lines: Annotated[int, About("How many lines; 50 if left out, 100 at most.")] = 0


@define(eq=False)
class CrushLogsTool(BuiltIn):
    """The tool `crush_logs`. `secrets` returns the secrets of the current configuration."""

    name = "crush_logs"
    parallel = True
    arguments = CrushLogsArguments

    logs: RecentLogs
    workspace_id: str
    secrets: Callable[[], Collection[str]] = field(default=tuple, kw_only=True)

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the last lines."""
        arguments = read_arguments(call.input, CrushLogsArguments)
        count = min(arguments.lines, MAX_LINES) if arguments.lines > 0 else DEFAULT_LINES
        tail = partial(
            self.logs.tail, count, workspace_id=self.workspace_id, secrets=self.secrets()
        )
        lines = await trio.to_thread.run_sync(tail)
        return ToolResult(content="\n".join(lines) or "Nothing has been logged.")
