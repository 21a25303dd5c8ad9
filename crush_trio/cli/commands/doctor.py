"""`crush-trio doctor`: is everything there that is needed, and what to do if not.

What `crush-trio doctor` looks at. Each finding is one line, and says what to do if it is bad.

Nothing is changed, and nothing is started. Only whether a key is there is told, never the key.
"""

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import click
import trio
from attrs import frozen
from rich.table import Table
from rich.text import Text

from crush_trio import __version__
from crush_trio.cli.exits import ExitCode, NotOurs, explain
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
from crush_trio.cli.report.reporter import count
from crush_trio.cli.server_link import client_token, configuration_of, probe
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.client import open_client
from crush_trio.client.errors import ServerUnreachable
from crush_trio.config.errors import ConfigInvalid, ExpansionFailed, NoticeKind
from crush_trio.config.load import chosen_limits
from crush_trio.config.models import DEMO_PROVIDER
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.errors import CrushError, LimitInvalid
from crush_trio.limits import ABOUT, shown
from crush_trio.store.errors import StoreLocked
from crush_trio.store.sqlite.database import DATABASE_NAME
from crush_trio.store.sqlite.store import open_sqlite_store

LIBRARIES: Final = ("trio", "hypercorn", "quart", "quart-trio", "h11", "click", "rich")
"""Whose versions are worth knowing when something is wrong."""

PROGRAMS: Final = {
    "git": "without it the agent knows nothing of a project's history",
    "rg": "without ripgrep searching falls back to a slower way",
}


class Verdict(Enum):
    """How bad a finding is: its mark and its colour."""

    OK = "✓", "green"
    WARN = "!", "yellow"
    FAIL = "✗", "red"


@frozen
class Finding:
    """One line of a report."""

    verdict: Verdict
    subject: str
    text: str
    advice: str = ""


async def examine_all(environ: Mapping[str, str], host: str | None, directory: str) -> int:
    """Print what was found; return whether it is all right."""
    findings = [*versions(), *programs(), *await server(environ, host), *limits(environ)]
    try:
        config = await configuration_of(Path(directory), environ)
    except CrushError as error:
        findings.append(_failed("configuration", error))
    else:
        findings += configuration(config)
        findings += await providers(config)
        findings += await data_directory(config)
    print_report(report(findings))
    bad = any(finding.verdict is Verdict.FAIL for finding in findings)
    return ExitCode.FAILED if bad else ExitCode.OK


def report(findings: list[Finding]) -> Table:
    """Return findings as a table; what to do stands below what is wrong."""
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = finding.verdict.value
        text = Text(one_line(finding.text))
        if finding.advice:
            text.append(f"\n→ {one_line(finding.advice)}", "italic")
        table.add_row(Text(mark, style), Text(finding.subject, "bold"), text)
    return table


# ── This machine ────────────────────────────────────────────────────────────────────────────────


def versions() -> list[Finding]:
    """Return which versions are at work."""
    python = f"crush-trio {__version__}, Python {platform.python_version()} on {sys.platform}"
    found = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    return [Finding(Verdict.OK, "versions", f"{python}; {found}")]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def programs() -> list[Finding]:
    """Return which programs that tools use are there."""
    findings = []
    for name, without in PROGRAMS.items():
        if path := shutil.which(name):
            findings.append(Finding(Verdict.OK, name, path))
        else:
            findings.append(Finding(Verdict.WARN, name, f"not found; {without}", f"install {name}"))
    return findings


async def server(environ: Mapping[str, str], host: str | None) -> list[Finding]:
    """Return whether a server answers where clients look."""
    await trio.lowlevel.checkpoint()
    try:
        address = choose_address(host, environ, os.getuid())
        async with open_client(address, token=client_token(environ)) as client:
            found = await probe(client)
            hosted = len(await client.workspaces())
    except ServerUnreachable as error:
        what, following = explain(error)
        verdict = Verdict.WARN if host is None else Verdict.FAIL
        own = "; commands bring their own meanwhile" if host is None else ""
        return [Finding(verdict, "server", what + own, following)]
    except NotOurs as error:
        return [Finding(Verdict.WARN, "server", *explain(error))]
    except CrushError as error:
        return [_failed("server", error)]
    text = f"version {found} answers at {address} and hosts {count(hosted, 'workspace')}"
    if found != __version__:
        advice = "restart it, so that server and command are of one version"
        return [Finding(Verdict.WARN, "server", text, advice)]
    return [Finding(Verdict.OK, "server", text)]


def limits(environ: Mapping[str, str]) -> list[Finding]:
    """Return the limits that a server would have, if they are not as they come."""
    try:
        differing = chosen_limits(environ).differing()
    except (LimitInvalid, ConfigInvalid) as error:
        return [_failed("limits", error)]
    told = (
        f"{name} {shown(name, value)} (default {shown(name, ABOUT[name].default)})"
        for name, value in differing.items()
    )
    return [Finding(Verdict.OK, "limits", ", ".join(told) or "all as they come")]


# ── This directory ──────────────────────────────────────────────────────────────────────────────


def configuration(config: LoadedConfig) -> list[Finding]:
    """Return what was read, and what was noticed about it."""
    files = ", ".join(str(source.path) for source in config.sources) or "no files"
    noticed = [
        Finding(Verdict.WARN, "configuration", str(notice), "see crush-trio config check")
        for notice in config.notices
        if notice.kind is not NoticeKind.DEMO
    ]
    return [Finding(Verdict.OK, "configuration", files), *noticed]


async def providers(config: LoadedConfig) -> list[Finding]:
    """Return which providers can be used, and whether their keys are there."""
    await trio.lowlevel.checkpoint()
    findings = [await _provider(config, name) for name in config.providers]
    selected = config.large.selected
    if selected.provider == DEMO_PROVIDER:
        text = "none is configured, so the offline demo answers"
        advice = "set a key such as ANTHROPIC_API_KEY, or describe a provider in crush.json"
        return [*findings, Finding(Verdict.WARN, "model", text, advice)]
    return [*findings, Finding(Verdict.OK, "model", f"{selected.provider}/{selected.model}")]


async def _provider(config: LoadedConfig, name: str) -> Finding:
    subject = f"provider {name}"
    await trio.lowlevel.checkpoint()
    try:
        resolved = await config.resolve_provider(name)
    except ExpansionFailed as error:
        return _failed(subject, error)
    entry = resolved.config
    keyed = "key present" if entry.api_key or entry.oauth is not None else "no key"
    return Finding(Verdict.OK, subject, f"{keyed}, {count(len(entry.models), 'model')}")


async def data_directory(config: LoadedConfig) -> list[Finding]:
    """Return who has the data directory, and what earlier starts have left in it."""
    subject, place = "data", config.data_dir
    if not await trio.Path(place / DATABASE_NAME).exists():
        return [Finding(Verdict.OK, subject, f"{place} has no sessions yet")]
    try:
        async with open_sqlite_store(place) as store:
            await store.check()
            sessions = count(len(await store.sessions()), "session")
            orphans = len(await store.orphans())
    except StoreLocked as error:
        owner = error.detail or str(error)
        return [Finding(Verdict.OK, subject, f"in use: {owner}, which ends what was left behind")]
    except CrushError as error:
        return [_failed(subject, error)]
    findings = [Finding(Verdict.OK, subject, f"{place} is sound and has {sessions}")]
    if orphans:
        text = f"{count(orphans, 'run')} of an earlier start without an ending"
        advice = "they are ended when the directory is next opened, as with crush-trio sessions"
        findings.append(Finding(Verdict.WARN, "orphans", text, advice))
    else:
        findings.append(Finding(Verdict.OK, "orphans", "no run of an earlier start is unfinished"))
    return findings


def _failed(subject: str, error: CrushError) -> Finding:
    return Finding(Verdict.FAIL, subject, *explain(error))


@click.command()
@host_option
@cwd_option
@debug_option
@pass_invocation
def doctor(invocation: Invocation, host: str | None, cwd: str) -> int:
    """Examine this installation, and the directory it is called in.

    Looks at versions, configuration, providers, the server, the data directory and the programs that
    tools use. Keys are never shown. Exit code 1 means that something has to be put right.
    """

    return invocation.run(examine_all, invocation.environ, host, directory_of(cwd, host))
