"""The environment of commands, and `run_shell`, which runs a command that a person typed.

The environment is made of the server's, taken when it started, and the workspace's own, which
overrides it. Nothing here reads the environment of the process (L21, L31).

`run_shell` serves a client without a model (D34). The command is neither judged nor refused, because a
person typed it. It is a task of the workspace, and the request waits for it: it is stopped when the
client disconnects, which cancels the request, or when the workspace closes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.clock import Clock
from crush_trio.config.template import CommandFailed, RunCommand
from crush_trio.tools.shell.jobs import ABORTED, COLUMNS, Jobs
from crush_trio.tools.shell.process import Command, run_command
from crush_trio.tools.workbench import Workbench

SHELLS: Final = ("/bin/bash", "/bin/sh")
"""The shells that run commands, the preferred one first."""

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
"""Variables for commands without a terminal: no editor, no pager, no password prompt (H9)."""

GIT_SETTINGS: Final = (("safe.bareRepository", "explicit"), ("core.fsmonitor", "false"))
"""Git settings that override those of a repository.

A directory in a checkout can look like a bare repository, with a configuration that names programs to
run; with the first setting, git uses such a repository only if told so explicitly. The second one stops
a repository from running a file system monitor, so that `git status` only reads.
"""

COLOURED: Final[Mapping[str, str]] = {
    "CLICOLOR": "1",
    "CLICOLOR_FORCE": "1",
    "FORCE_COLOR": "1",
    "COLORTERM": "truecolor",
}
"""Variables that make programs write colours although their output is a pipe (D34)."""

STARTUP: Final = frozenset({"BASH_ENV", "ENV", "CDPATH", "SHELLOPTS", "BASHOPTS", "NO_COLOR"})
"""Variables removed because they change what a shell does: they run a file first, or alter `cd`.

A command is judged by its text (`judge.py`), so the shell must do what the text says and no more.
`NO_COLOR` is removed because some programs obey it even if `FORCE_COLOR` is set.
"""


def tool_environment(base: Mapping[str, str], workspace_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a tool's commands: *base*, the workspace's, and `UNATTENDED`."""
    return unattended_env({**base, **workspace_env})


def unattended_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* for a command without a terminal: no prompts, and no shell startup variables."""
    plain = {name: value for name, value in env.items() if not _changes_the_shell(name)}
    return _with_git_settings({**plain, **UNATTENDED})


def coloured_env(env: Mapping[str, str], columns: int = 0) -> dict[str, str]:
    """Return *env* with the variables for coloured output, and the width of the terminal."""
    width = {"COLUMNS": str(columns)} if columns > 0 else {}
    return {**env, **COLOURED, **width}


def shell_argv(command: str) -> tuple[str, ...]:
    """Return the argument vector that runs *command* in a shell."""
    shell = next((path for path in SHELLS if Path(path).exists()), SHELLS[-1])
    return (shell, "-c", "--", command)


def _with_git_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* with our git settings after those it already has; git uses the last one."""
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
    """The output of a command, standard output before standard error, and its exit code."""

    output: str
    exit_code: int


async def run_shell(bench: Workbench, jobs: Jobs, command: str, *, columns: int = 0) -> ShellAnswer:
    """Run *command* in the workspace and return its output, with colours.

    *columns* is the width of the person's terminal. A cancel stops the command first. Raises
    `ValueError` for a text that cannot be a command.
    """
    env = coloured_env(unattended_env(bench.env), columns)
    started = Command(argv=shell_argv(command), working_dir=bench.directory, env=env)
    async with jobs.foreground(command, started) as job:
        await job.wait()
    output = job.output(COLUMNS)
    assert output.ended is not None
    text = "\n".join(filter(None, (output.stdout, output.stderr)))
    if output.ended.stopped:
        text += f"{ABORTED}\n"
    return ShellAnswer(output=text, exit_code=output.ended.status)


def config_commands(clock: Clock) -> RunCommand:
    """Return the function that runs the commands from which a configuration takes values."""

    async def run(script: str, environment: Mapping[str, str], directory: Path) -> str:
        command = Command(
            argv=shell_argv(script), working_dir=directory, env=unattended_env(environment)
        )
        try:
            finished = await run_command(command, clock=clock)
        except OSError as error:
            raise CommandFailed(f"it could not be started: {error.strerror}") from error
        if finished.ended.status:
            raise CommandFailed(f"it ended with exit code {finished.ended.status}")
        return finished.stdout.text()

    return run
