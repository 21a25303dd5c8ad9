"""The checks of `crush-trio doctor --security`: what protects this user here, tried and not assumed.

Commands are run in the sandbox of the directory, as an agent's would be, and try what they must not be
able to do. They change nothing: a file is opened for appending and nothing is appended, a file that could
be made is removed, and what is hidden is only listed.
"""

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from crush_trio.agent.turn.planner import git_state
from crush_trio.cli.options import choose_address
from crush_trio.cli.report.findings import Finding, Level
from crush_trio.cli.server_link import client_token
from crush_trio.clock import SystemClock
from crush_trio.config.files import CommandPolicy, SandboxMode
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.net.address import UnixAddress
from crush_trio.tools.sandbox.confinement import Confinement, Network, SandboxKind
from crush_trio.tools.sandbox.machine import MachineSandbox
from crush_trio.tools.sandbox.probe import SandboxFound, probe_sandbox
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.tools.shell.environment import shell_argv, unattended_env
from crush_trio.tools.shell.process import Command, run_command

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL

TRY_LIMIT: Final = 20.0
"""Seconds for the commands of one check."""

MARK: Final = ".crush-trio-doctor-probe"
"""The name of a file that a check tries to make."""

INSTALL: Final = "install the package bubblewrap, and allow user namespaces if they are disabled"

LEFT_OUT: Final = 3
"""How many paths a finding names."""

WRITES: Final = f"""
for path in "$@"; do
    [ -d "$path" ] && target=$path/{MARK} || target=$path
    if {{ : >> "$target"; }} 2>/dev/null; then
        echo "$path"
        [ "$target" = "$path" ] || rm -f "$target"
    fi
done
"""
"""Prints those of its arguments that can be written."""

READS: Final = """
for path in "$@"; do
    if [ -d "$path" ]; then [ -z "$(ls -A "$path" 2>/dev/null)" ] || echo "$path"
    else [ -z "$(head -c 1 "$path" 2>/dev/null | tr '\\0' x)" ] || echo "$path"
    fi
done
"""
"""Prints those of its arguments that show something."""

CONNECTS: Final = 'if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then echo connected; fi'
"""Prints a word if it can connect to a port of this machine. Needs bash."""


@frozen
class Still:
    """A configuration that does not change. Satisfies `Configured`."""

    current: LoadedConfig


async def check_security(
    environ: Mapping[str, str], host: str | None, config: LoadedConfig
) -> list[Finding]:
    """Return what protects the user in the directory of *config*, and what does not."""
    found = await probe_sandbox()
    sandbox = CommandSandbox(live=Still(config), machine=MachineSandbox(found.kind))
    return [
        *describe_sandbox(config, found),
        *await held(sandbox),
        await git_hardening(config),
        *await trio.to_thread.run_sync(address_findings, environ, host),
        *await trio.to_thread.run_sync(configuration_findings, config),
    ]


# ── The sandbox ─────────────────────────────────────────────────────────────────────────────────


def describe_sandbox(config: LoadedConfig, found: SandboxFound) -> list[Finding]:
    """Return which sandbox holds commands, and what the configuration makes of it."""
    mode, subject = config.sandbox.mode, "sandbox"
    if mode is SandboxMode.OFF:
        text = "off: what you approve runs with all your rights, and most commands ask"
        return [Finding(WARN, subject, text, "set crush_trio.sandbox.mode to auto")]
    why = "; ".join(found.reasons)
    if found.kind is SandboxKind.NONE:
        required = mode is SandboxMode.REQUIRE
        effect = (
            "commands are refused" if required else "what you approve runs with all your rights"
        )
        return [Finding(FAIL if required else WARN, subject, f"none: {effect} ({why})", INSTALL)]
    lost = CommandSandbox(live=Still(config), machine=MachineSandbox(found.kind)).losses()
    findings = [Finding(OK, subject, f"{found.kind.value} holds commands (mode {mode.value})")]
    if lost:
        more = f" and {len(lost) - LEFT_OUT} more" if len(lost) > LEFT_OUT else ""
        text = (
            f"{found.kind.value} cannot do everything: {'; '.join(lost[:LEFT_OUT])}{more} ({why})"
        )
        findings.append(Finding(WARN, subject, text, INSTALL))
    if config.sandbox.commands is CommandPolicy.ALLOW:
        text = "commands run in the sandbox without asking (crush_trio.sandbox.commands is allow)"
        findings.append(Finding(OK, subject, text))
    return findings


async def held(sandbox: CommandSandbox) -> list[Finding]:
    """Try in the sandbox what commands must not be able to do; nothing if there is none."""
    unasked = await trio.to_thread.run_sync(sandbox.for_unasked)
    approved = await trio.to_thread.run_sync(sandbox.for_approved)
    if unasked is None or approved is None:
        return []
    assert sandbox.live is not None
    config = sandbox.live.current
    workspace, home = config.project.directory, config.places.home
    places = (home, Path("/usr"), Path("/etc"), Path("/var"))
    outside = [each for each in places if not any(map(each.is_relative_to, approved.writable))]
    async with _open_listener() as port:
        attempts = (
            ("unasked writes", WRITES, [workspace, home, "/tmp"], unasked),
            ("unasked reads", READS, [*unasked.hidden, f"/proc/{os.getpid()}/environ"], unasked),
            ("unasked network", CONNECTS, [port], unasked),
            ("writes outside", WRITES, [*outside, *approved.protected], approved),
            ("private files", READS, [*approved.hidden, f"/proc/{os.getpid()}/environ"], approved),
        )
        findings = [
            await _attempt(subject, script, arguments, confinement, sandbox)
            for subject, script, arguments, confinement in attempts
        ]
        findings.append(await _network(port, approved, sandbox))
    return findings


async def _network(port: int, approved: Confinement, sandbox: CommandSandbox) -> Finding:
    if approved.network is Network.ON:
        await trio.lowlevel.checkpoint()
        text = "approved commands have the network (crush_trio.sandbox.network is on)"
        return Finding(OK, "network", text)
    return await _attempt("network", CONNECTS, [port], approved, sandbox)


async def _attempt(
    subject: str,
    script: str,
    arguments: Iterable[object],
    confinement: Confinement,
    sandbox: CommandSandbox,
) -> Finding:
    """Run a script in the sandbox; whatever it prints could be done and must not be.

    A connection is first made without the sandbox: otherwise a shell that cannot connect at all would
    look like a sandbox that holds.
    """
    tried = [str(each) for each in arguments]
    await trio.lowlevel.checkpoint()
    argv = (*shell_argv(script), "probe", *tried)
    try:
        if script == CONNECTS and not await _run(sandbox, argv, None):
            return Finding(WARN, subject, "could not be tried: there is no bash", "install bash")
        said = await _run(sandbox, argv, confinement)
    except (OSError, trio.TooSlowError) as error:
        text = f"could not be tried: {error}"
        return Finding(WARN, subject, text, "run it again; a busy machine may be the reason")
    if said:
        text = f"not prevented: {', '.join(said[:LEFT_OUT])}"
        return Finding(FAIL, subject, text, "report this: it is a hole in the sandbox")
    return Finding(OK, subject, f"prevented ({len(tried)} tried)")


async def _run(
    sandbox: CommandSandbox, argv: tuple[str, ...], confinement: Confinement | None
) -> list[str]:
    """Run a command and return the lines it printed; raise if it did not run."""
    command = Command(
        argv=argv,
        working_dir=Path("/"),
        env=unattended_env({"PATH": os.defpath}),
        confinement=confinement,
        sandbox=sandbox.kind,
    )
    with trio.fail_after(TRY_LIMIT):
        finished = await run_command(command, clock=SystemClock())
    return finished.stdout.text().splitlines()


@asynccontextmanager
async def _open_listener() -> AsyncIterator[int]:
    """Listen on a port of this machine, for commands that must not reach it."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        yield listener.socket.getsockname()[1]


# ── Git ─────────────────────────────────────────────────────────────────────────────────────────

HOSTILE: Final = """\
[core]
\trepositoryformatversion = 0
\tbare = false
\tfsmonitor = {program}
\tpager = {program}
[diff]
\texternal = {program}
[filter "x"]
\tclean = {program}
\tsmudge = {program}
"""


async def git_hardening(config: LoadedConfig) -> Finding:
    """Look at a repository whose configuration names programs, as a run does before it begins.

    Without the sandbox, in which a program that ran could not leave its mark.
    """
    subject = "git"
    if shutil.which("git") is None:
        await trio.lowlevel.checkpoint()
        return Finding(OK, subject, "not installed, so no repository is looked at")
    with tempfile.TemporaryDirectory(prefix="crush-trio-doctor-") as name:
        place, ran = Path(name), Path(name, "ran")
        await trio.to_thread.run_sync(_hostile_repository, place / "work", ran)
        await git_state(place / "work", config.environment, SystemClock())
        if await trio.to_thread.run_sync(ran.exists):
            text = "a program that a repository names was run"
            return Finding(FAIL, subject, text, "report this: it is a hole")
    return Finding(OK, subject, "programs that a repository names are not run")


def _hostile_repository(work: Path, ran: Path) -> None:
    """Make a repository whose configuration, filter and hook make the file *ran*."""
    for name in ("objects", "refs/heads", "hooks"):
        (work / ".git" / name).mkdir(parents=True)
    program = work / ".git" / "program"
    for path in (program, work / ".git" / "hooks" / "post-index-change"):
        path.write_text(f"#!/bin/sh\n: > '{ran}'\ncat\n")
        path.chmod(0o700)
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (work / ".git" / "config").write_text(HOSTILE.format(program=program))
    (work / ".gitattributes").write_text("* filter=x\n")
    (work / "file").write_text("text\n")


# ── Addresses, tokens, trust ────────────────────────────────────────────────────────────────────


def address_findings(environ: Mapping[str, str], host: str | None) -> list[Finding]:
    """Return who can reach the server at *host* or the default address."""
    address, token = choose_address(host, environ, os.getuid()), client_token(environ)
    if not isinstance(address, UnixAddress):
        text = f"{address} is for whoever has the token" if token else f"{address} needs no token"
        advice = "" if token else "set CRUSH_TRIO_TOKEN where other users share this machine"
        return [Finding(OK if token else WARN, "address", text, advice)]
    text = f"{address} is for your own programs"
    given = "CRUSH_TRIO_TOKEN is set" if token else "none is needed for your own programs"
    return [_socket(Path(address.path), text), Finding(OK, "token", given)]


def _socket(path: Path, text: str) -> Finding:
    try:
        state, around = path.lstat(), path.parent.stat()
    except OSError:
        return Finding(OK, "address", f"{text}; no server is running there")
    if not stat.S_ISSOCK(state.st_mode) or state.st_uid != os.getuid():
        problem = "is not a socket of yours"
        return Finding(FAIL, "address", f"{path} {problem}", "remove it, or give --host")
    if state.st_mode & 0o077:
        advice = f"chmod 600 {path}"
        return Finding(WARN, "address", f"{path} can be used by other users", advice)
    if around.st_uid not in {0, os.getuid()} or (around.st_mode & 0o022 and not _sticky(around)):
        advice = f"chmod 700 {path.parent}"
        return Finding(WARN, "address", f"{path.parent} can be changed by other users", advice)
    return Finding(OK, "address", text)


def _sticky(state: os.stat_result) -> bool:
    return bool(state.st_mode & stat.S_ISVTX)


def configuration_findings(config: LoadedConfig) -> list[Finding]:
    """Return what the user's files give away: trust, permissions, keys that others can read."""
    findings = []
    wide = [each for each in config.trusted if config.places.home.is_relative_to(each)]
    listed = ", ".join(map(str, config.trusted)) or "none"
    if wide:
        advice = (
            f"trust single projects instead: crush-trio trust --remove {shlex.quote(str(wide[0]))}"
        )
        text = f"{wide[0]} is trusted, so every project below it is"
        findings.append(Finding(WARN, "trust", text, advice))
    else:
        findings.append(Finding(OK, "trust", f"trusted directories: {listed}"))
    allowed = config.config.permissions.allowed_tools if config.config.permissions else ()
    if "bash" in allowed or "bash:execute" in allowed:
        text = "bash runs every command without asking (permissions.allowed_tools)"
        advice = "use crush_trio.sandbox.commands: allow instead"
        findings.append(Finding(WARN, "permissions", text, advice))
    for source in config.sources:
        if source.user_level and _readable_by_others(source.path):
            text = f"{source.path} holds your configuration and others can read it"
            findings.append(Finding(WARN, "files", text, f"chmod 600 {source.path}"))
    return findings


def _readable_by_others(path: Path) -> bool:
    try:
        state = path.stat()
    except OSError:
        return False
    return state.st_uid == os.getuid() and bool(state.st_mode & 0o077)
