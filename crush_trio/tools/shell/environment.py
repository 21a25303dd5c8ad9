"""The environment of the commands that tools start, and the shell that runs them.

An environment is made of two that are given: the server's, taken when it started, and the
workspace's own, which wins. Nothing here reads the environment of the process (L21, L31).

A shell command that a person types, without a model in between (D34).

Nobody is asked and nothing is refused: the person at the client decides. The command is a task of the
workspace like any other, and the request waits for it. So it ends with whichever goes first: a client
that hangs up cancels the request and with it the command, and a workspace that closes ends it too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.tools.shell.jobs import ABORTED, COLUMNS, Jobs
from crush_trio.tools.shell.process import Command
from crush_trio.tools.workbench import Workbench

SHELLS: Final = ("/bin/bash", "/bin/sh")
"""The shells that commands are written for, the better one first."""

UNATTENDED: Final[Mapping[str, str]] = {
    "CRUSH": "1",
    "AGENT": "crush",
    "AI_AGENT": "crush",
    "TERM": "xterm-256color",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "LESS": "-FRX",
}
"""Nobody sits at this terminal: no editor opens, no pager waits, no password is asked for (H9)."""

GIT_SETTINGS: Final = (("safe.bareRepository", "explicit"), ("core.fsmonitor", "false"))
"""What git is told whatever a repository says.

A directory of a checkout can look like a repository without a work tree, with a configuration that
names programs to run; git takes it for one only if it is told to. And no repository has a program run
to find out which files changed: `git status` is to look and nothing else.
"""

COLOURED: Final[Mapping[str, str]] = {
    "CLICOLOR": "1",
    "CLICOLOR_FORCE": "1",
    "FORCE_COLOR": "1",
    "COLORTERM": "truecolor",
}
"""A person looks at the output, although it goes through a pipe (D34)."""

STARTUP: Final = frozenset({"BASH_ENV", "ENV", "CDPATH", "SHELLOPTS", "BASHOPTS", "NO_COLOR"})
"""What makes a shell run a file first, look elsewhere, or mean something else by a command.

A command is judged by its text (`commands.py`), so the text must be all there is. `NO_COLOR` is
here because some programs obey it however much colour is asked for; without it nothing changes.
"""


def tool_environment(base: Mapping[str, str], workspace_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a tool's commands: *base*, the workspace's, and ours on top."""
    return unattended_env({**base, **workspace_env})


def unattended_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* for a command at which nobody sits, and whose shell does just what it is told."""
    plain = {name: value for name, value in env.items() if not _changes_the_shell(name)}
    return _with_git_settings({**plain, **UNATTENDED})


def coloured_env(env: Mapping[str, str], columns: int = 0) -> dict[str, str]:
    """Return *env* with all that makes programs write colours into a pipe, for so many columns."""
    width = {"COLUMNS": str(columns)} if columns > 0 else {}
    return {**env, **COLOURED, **width}


def shell_argv(command: str) -> tuple[str, ...]:
    """Return how the system's shell is started to run *command* and nothing else."""
    shell = next((path for path in SHELLS if Path(path).exists()), SHELLS[-1])
    return (shell, "-c", "--", command)


def _with_git_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* with our settings after those it has for git already; the last one counts."""
    given = env.get("GIT_CONFIG_COUNT", "")
    first = int(given) if given.isascii() and given.isdecimal() else 0
    ours = {"GIT_CONFIG_COUNT": str(first + len(GIT_SETTINGS))}
    for number, (key, value) in enumerate(GIT_SETTINGS, first):
        ours |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**env, **ours}


def _changes_the_shell(name: str) -> bool:
    return name in STARTUP or name.startswith("BASH_FUNC_")


@frozen(kw_only=True)
class ShellAnswer:
    """What a command wrote, both streams in the order they came, and its exit code."""

    output: str
    exit_code: int


async def run_shell(bench: Workbench, jobs: Jobs, command: str, *, columns: int = 0) -> ShellAnswer:
    """Run *command* in the workspace and return what it wrote, with its colours.

    *columns* is how wide the person's terminal is. Cancelling ends the command first. Raises
    `ValueError` for a text that cannot be a command.
    """
    env = coloured_env(unattended_env(bench.env), columns)
    started = Command(argv=shell_argv(command), working_dir=bench.directory, env=env)
    async with jobs.foreground(command, started, merged=True) as job:
        await job.wait()
    output = job.output(COLUMNS)
    assert output.ended is not None
    text = output.stdout + output.stderr
    if output.ended.stopped:
        text += f"{ABORTED}\n"
    return ShellAnswer(output=text, exit_code=output.ended.status)
