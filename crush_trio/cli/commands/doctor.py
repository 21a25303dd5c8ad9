"""`crush-trio doctor`: check the installation, the server and a directory, with advice.

Each finding is one line. Nothing is changed; only the sandbox is tried, with commands that end at once.
Keys are reported as present or missing, and never shown. `--security` tries what protects the user
(`cli/security_checks.py`), `--store` checks a database that servers share (`cli/store_checks.py`).
"""

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import click
import trio

from crush_trio import __version__
from crush_trio.audit.file import AuditFile
from crush_trio.audit.record import NO_PLACE, audit_path
from crush_trio.cli.background import LINGER, Background
from crush_trio.cli.configuration import configuration_of
from crush_trio.cli.exits import ExitCode, NotOurs, explain
from crush_trio.cli.import_hint import GO_NAME, import_hint, missing_sessions
from crush_trio.cli.options import (
    Invocation,
    choose_address,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    pass_invocation,
    print_report,
)
from crush_trio.cli.report.findings import Finding, Level, failed, report
from crush_trio.cli.report.reporter import count
from crush_trio.cli.security_checks import check_security, describe_sandbox
from crush_trio.cli.server_link import STUCK, client_token, open_directory, open_link, probe
from crush_trio.client.client import open_client
from crush_trio.client.http import ServerUnreachable
from crush_trio.clock import Clock, SystemClock
from crush_trio.config.checks import chosen_limits
from crush_trio.config.errors import ConfigInvalid, ConfigWarningKind, ExpansionFailed
from crush_trio.config.known_providers import DEMO_PROVIDER, unsupported_key
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.errors import CrushError, LimitInvalid
from crush_trio.limits import LIMIT_INFO, shown
from crush_trio.net.address import UnixAddress, default_address, parse_server_url
from crush_trio.net.unix_socket import find_listener
from crush_trio.server.tokens import TokenFile, TokensUnusable, tokens_path
from crush_trio.store.errors import StoreLocked
from crush_trio.store.open import StoreSettings, has_data, inspect_store, open_store
from crush_trio.tools.sandbox.probe import probe_sandbox

LIBRARIES: Final = ("trio", "hypercorn", "quart", "quart-trio", "h11", "click", "rich")
"""Libraries whose versions are reported."""

PROGRAMS: Final = {
    "git": "without it the agent does not see the history of a project",
    "rg": "without ripgrep a slower search is used",
}

_DEFAULT_STORE: Final = StoreSettings()


@click.command()
@host_option
@cwd_option
@click.option(
    "--security", is_flag=True, help="Try instead what protects you, above all the sandbox."
)
@click.option(
    "--store",
    metavar="URL",
    help="Check instead whether servers can share this database, and how those on it are.",
)
@debug_option
@pass_invocation
def doctor(
    invocation: Invocation, host: str | None, cwd: str, security: bool, store: str | None
) -> int:
    """Check this installation and a directory for problems.

    Checks versions, configuration, providers, the server, the data directory and the programs that
    tools use. Keys are never shown. Exit code 1 means that there is a problem to fix.
    """
    if store is not None:
        return invocation.run(check_shared_store, invocation.environ, store)
    check = check_protection if security else check_all
    return invocation.run(check, invocation.environ, host, directory_of(cwd, host))


async def check_all(environ: Mapping[str, str], host: str | None, directory: str) -> int:
    """Print all findings; return the exit code."""
    findings = [*versions(), *programs(), *await server(environ, host), *limits(environ)]
    findings += [*audit(environ), *tokens(environ, SystemClock())]
    if host is not None and not isinstance(parse_server_url(host), UnixAddress):
        return _print([*findings, *await remote_workspace(environ, host, directory)])
    try:
        config = await configuration_of(Path(directory), environ)
        store = StoreSettings.from_environment(environ)
    except CrushError as error:
        findings.append(failed("configuration", error))
    else:
        findings += configuration(config)
        findings += describe_sandbox(config, await probe_sandbox())
        findings += await providers(config)
        findings += await data_directory(config, store)
        findings += await crush_sessions(config, store)
    return _print(findings)


async def check_protection(environ: Mapping[str, str], host: str | None, directory: str) -> int:
    """Print what protects the user in a directory; return the exit code."""
    await trio.lowlevel.checkpoint()
    try:
        config = await configuration_of(Path(directory), environ)
        findings = await check_security(environ, host, config)
    except CrushError as error:
        findings = [failed("configuration", error)]
    return _print(findings)


async def check_shared_store(environ: Mapping[str, str], url: str) -> int:
    """Print whether servers can share a database; return the exit code."""
    from crush_trio.cli.store_checks import check_store

    return _print(await check_store(environ, url))


def _print(findings: list[Finding]) -> int:
    print_report(report(findings))
    bad = any(finding.level is Level.FAIL for finding in findings)
    return ExitCode.FAILED if bad else ExitCode.OK


# ── This machine ────────────────────────────────────────────────────────────────────────────────


def versions() -> list[Finding]:
    """Return the versions of this program, Python and libraries."""
    python = f"crush-trio {__version__}, Python {platform.python_version()} on {sys.platform}"
    found = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    return [Finding(Level.OK, "versions", f"{python}; {found}")]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def programs() -> list[Finding]:
    """Return which of the programs that tools use are installed."""
    findings = []
    for name, without in PROGRAMS.items():
        if path := shutil.which(name):
            findings.append(Finding(Level.OK, name, path))
        else:
            findings.append(Finding(Level.WARN, name, f"not found; {without}", f"install {name}"))
    return findings


async def server(environ: Mapping[str, str], host: str | None) -> list[Finding]:
    """Return whether a server answers at *host* or the default address."""
    await trio.lowlevel.checkpoint()
    try:
        address = choose_address(host, environ, os.getuid())
        async with open_client(address, token=client_token(environ), environ=environ) as client:
            answered = await probe(client)
            hosted = len(await client.workspaces())
            problems = (await client.health()).problems
    except ServerUnreachable as error:
        what, advice = explain(error)
        level = Level.WARN if host is None else Level.FAIL
        if host is None and (found := await background(environ)) is not None:
            home = default_address(environ, os.getuid())
            silent = await find_listener(home.path)
            return [found] if silent is None else [Finding(level, "server", what, advice), found]
        own = "; each command starts its own" if host is None else ""
        return [Finding(level, "server", what + own, advice)]
    except NotOurs as error:
        theirs = Finding(Level.WARN, "server", *explain(error))
        found = await background(environ) if host is None else None
        return [theirs] if found is None else [theirs, found]
    except CrushError as error:
        return [failed("server", error)]
    text = f"version {answered} answers at {address} and hosts {count(hosted, 'workspace')}"
    ailing = [Finding(Level.FAIL, "server", *_split(each.message)) for each in problems]
    if answered != __version__:
        advice = "restart it, so that server and command have the same version"
        return [Finding(Level.WARN, "server", text, advice), *ailing]
    return [Finding(Level.OK, "server", text), *ailing]


async def background(environ: Mapping[str, str]) -> Finding | None:
    """Return the state of the server in the background; None if the environment asks for none."""
    await trio.lowlevel.checkpoint()
    shared = Background.of(environ, os.getuid())
    if shared is None:
        return None
    if not shared.listening():
        return Finding(Level.OK, "server", "none runs; commands start one in the background")
    try:
        async with open_client(shared.address, environ={}) as client:
            found = await probe(client, remedy=STUCK)
            hosted = len(await client.workspaces())
    except CrushError as error:
        return failed("server", error)
    program = await find_listener(shared.address.path)
    text = (
        f"version {found} runs in the background ({program}) at {shared.address}, hosts "
        f"{count(hosted, 'workspace')}, ends {LINGER:.0f} s after its last client; log: {shared.log}"
    )
    if shared.ours:
        return Finding(Level.OK, "server", text)
    advice = "another installation started it; it is replaced when no client uses it"
    return Finding(Level.WARN, "server", text, advice)


async def remote_workspace(environ: Mapping[str, str], host: str, directory: str) -> list[Finding]:
    """Return what a server on TCP sees of a directory: its own keys and files count, not this shell's."""
    await trio.lowlevel.checkpoint()
    try:
        async with (
            open_link(host, environ, start=False) as link,
            open_directory(link, directory, environ) as workspace,
        ):
            model = (await workspace.agent.info()).model_cfg
            known = (await workspace.config.get()).providers
    except CrushError as error:
        return [failed("directory", error)]
    theirs = f"the server's: {', '.join(sorted(known)) or 'none'}; keys of this shell are not used"
    found = [Finding(Level.OK, "providers", theirs)]
    if model.provider == DEMO_PROVIDER:
        text = "none is configured on the server, so the offline demo answers"
        advice = (
            "set a key in the environment of the server, or describe a provider in its crush.json"
        )
        return [*found, Finding(Level.WARN, "model", text, advice)]
    return [*found, Finding(Level.OK, "model", f"{model.provider}/{model.model}")]


def audit(environ: Mapping[str, str]) -> list[Finding]:
    """Return whether the audit can be written, without writing anything."""
    path = audit_path(environ)
    if path is None:
        return [Finding(Level.WARN, "audit", *_split(NO_PLACE))]
    try:
        AuditFile(path).check()
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
        return [Finding(Level.FAIL, "audit", reason, "make the directory writable for this user")]
    return [Finding(Level.OK, "audit", f"{path}; crush-trio audit shows it")]


def tokens(environ: Mapping[str, str], clock: Clock) -> list[Finding]:
    """Return the named tokens, and whether their file can be used."""
    try:
        found = TokenFile(tokens_path(environ)).read()
    except TokensUnusable as error:
        return [failed("tokens", error)]
    old = sum(each.expired(clock.unix()) for each in found)
    text = count(len(found), "named token") if found else "no named tokens"
    if old:
        advice = "revoke those that are not needed: crush-trio token list"
        return [Finding(Level.WARN, "tokens", f"{text}, {old} expired", advice)]
    return [Finding(Level.OK, "tokens", text)]


def limits(environ: Mapping[str, str]) -> list[Finding]:
    """Return the limits of a server that differ from the defaults."""
    try:
        differing = chosen_limits(environ).differing()
    except (LimitInvalid, ConfigInvalid) as error:
        return [failed("limits", error)]
    told = (
        f"{name} {shown(name, value)} (default {shown(name, LIMIT_INFO[name].default)})"
        for name, value in differing.items()
    )
    return [Finding(Level.OK, "limits", ", ".join(told) or "all at their defaults")]


# ── This directory ──────────────────────────────────────────────────────────────────────────────


def configuration(config: LoadedConfig) -> list[Finding]:
    """Return which configuration files were read, and the warnings about them."""
    files = ", ".join(str(source.path) for source in config.sources) or "no files"
    warnings = [
        Finding(Level.WARN, "configuration", str(notice), "see crush-trio config check")
        for notice in config.warnings
        if notice.kind is not ConfigWarningKind.DEMO
    ]
    return [Finding(Level.OK, "configuration", files), *warnings]


async def providers(config: LoadedConfig) -> list[Finding]:
    """Return the configured providers, whether they have keys, and the selected model."""
    await trio.lowlevel.checkpoint()
    findings = [await _provider(config, name) for name in config.providers]
    selected = config.large.selected
    if selected.provider == DEMO_PROVIDER:
        text = "none is configured, so the offline demo answers"
        advice = "set a key such as ANTHROPIC_API_KEY, or describe a provider in crush.json"
        unusable = unsupported_key(config.environment)
        return [*findings, Finding(Level.WARN, "model", text, unusable or advice)]
    return [*findings, Finding(Level.OK, "model", f"{selected.provider}/{selected.model}")]


async def _provider(config: LoadedConfig, name: str) -> Finding:
    subject = f"provider {name}"
    await trio.lowlevel.checkpoint()
    try:
        resolved = await config.resolve_provider(name)
    except ExpansionFailed as error:
        return failed(subject, error)
    entry = resolved.config
    keyed = "key present" if entry.api_key or entry.oauth is not None else "no key"
    return Finding(Level.OK, subject, f"{keyed}, {count(len(entry.models), 'model')}")


async def data_directory(
    config: LoadedConfig, settings: StoreSettings = _DEFAULT_STORE
) -> list[Finding]:
    """Return the state of the data directory: its owner, and runs that were left unfinished."""
    subject, place, directory = "data", config.data_dir, config.project.directory
    try:
        if not await has_data(settings, place, directory):
            return [Finding(Level.OK, subject, f"{place} has no sessions yet")]
        found = await inspect_store(settings, place, directory)
    except StoreLocked as error:
        owner = error.detail or str(error)
        return [Finding(Level.OK, subject, f"in use: {owner}, which ends unfinished runs")]  # noqa: ASYNC910  # the store was asked
    except CrushError as error:
        return [failed(subject, error)]  # noqa: ASYNC910  # likewise
    sessions = count(found.sessions, "session")
    findings = [Finding(Level.OK, subject, f"{place} is intact and has {sessions}")]
    if found.orphans:
        text = f"{count(found.orphans, 'unfinished run')} of an earlier process"
        advice = (
            "they are ended when the directory is opened next, for example by crush-trio sessions"
        )
        findings.append(Finding(Level.WARN, "orphans", text, advice))
    else:
        findings.append(Finding(Level.OK, "orphans", "no unfinished runs of an earlier process"))
    return findings


async def crush_sessions(
    config: LoadedConfig, settings: StoreSettings = _DEFAULT_STORE
) -> list[Finding]:
    """Return whether the Go program has sessions beside ours that were not imported."""
    place, known = config.data_dir, frozenset[str]()
    number = await missing_sessions(place)
    if not number:
        return []
    try:
        directory = config.project.directory
        if await has_data(settings, place, directory):
            async with open_store(settings, place, directory) as store:
                known = frozenset(session.id for session in await store.sessions())
    except StoreLocked:
        text = f"{place / GO_NAME} has {count(number, 'session')}"
        return [Finding(Level.OK, "crush", f"{text}; crush-trio sessions says if any is not here")]
    except CrushError:
        return []  # `data_directory` has told it
    hint = await import_hint(place, str(config.project.directory), known)
    return [] if hint is None else [Finding(Level.WARN, "crush", hint.what, hint.command)]


def _split(text: str) -> tuple[str, str]:
    what, _, advice = text.partition("; ")
    return what, advice
