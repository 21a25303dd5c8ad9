"""`unasked_env`: the environment of a command that runs without permission.

Such a command was judged by its text, so nothing else may change what it does. Variables that make
programs run other programs, read other files or parse their options differently are removed, and so are
places in PATH from which a checkout could bring its own `ls`.

Git gets a configuration that names no program: not the user's and the system's files, but the settings
in them that are on the list of `git_repository.py`, such as `safe.directory` or the colours. So no
converter, filter or pager of the user runs on the files of a project. Settings of the repository itself
cannot be left out; `reason_to_ask` compares them with the same list before git runs at all.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from crush_trio.tools.shell.environment import unattended_env
from crush_trio.tools.shell.git_repository import Setting, names_no_program, read_config

NO_PROGRAM: Final = "/dev/null"
"""A path that exists and cannot be executed."""

GIT_VARIABLES: Final[Mapping[str, str]] = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_ASKPASS": NO_PROGRAM,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_EDITOR": "true",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_SSH_COMMAND": NO_PROGRAM,
    "GIT_TERMINAL_PROMPT": "0",
}
"""All variables with the prefix `GIT_` that an unasked command has, beside those of `GIT_SETTINGS`."""

GIT_SETTINGS: Final = (
    ("safe.bareRepository", "explicit"),
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.pager", "cat"),
    ("core.editor", "true"),
    ("core.askPass", NO_PROGRAM),
    ("core.sshCommand", NO_PROGRAM),
    ("core.alternateRefsCommand", NO_PROGRAM),
    ("credential.helper", ""),
    ("diff.autoRefreshIndex", "false"),
    ("diff.ignoreSubmodules", "dirty"),
    ("diff.submodule", "short"),
    ("gpg.program", NO_PROGRAM),
    ("gpg.openpgp.program", NO_PROGRAM),
    ("gpg.x509.program", NO_PROGRAM),
    ("gpg.ssh.program", NO_PROGRAM),
    ("log.showSignature", "false"),
    ("protocol.allow", "never"),
    ("protocol.ext.allow", "never"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
)
"""Git settings that override those of a repository.

They name no program, open no connection, do not look into submodules, and do not write the index:
`git diff` writes it after it has compared a file whose time changed, and then runs a hook.
There is no `diff.external`: git 2.39 takes an empty one for a program.
"""

CARRIED: Final = frozenset({"core.excludesfile", "safe.directory"})
"""Settings of the user that unasked commands have although a repository must not have them."""

REMOVED: Final = frozenset(
    {"BASH_COMPAT", "BASH_XTRACEFD", "EXECIGNORE", "GCONV_PATH", "GLOBIGNORE", "GREP_OPTIONS"}
    | {"LESSCLOSE", "LESSOPEN", "LOCPATH", "MAGIC", "NLSPATH", "POSIXLY_CORRECT"}
    | {"RIPGREP_CONFIG_PATH", "SSH_ASKPASS", "TREE_COLORS", "_POSIX2_VERSION"}
)
"""Variables that make a program do something else than its arguments say.

With `POSIXLY_CORRECT` an option after an operand is a file name, so that the value of an option is one
too; `RIPGREP_CONFIG_PATH` names a file with options, such as `--pre`.
"""


def unasked_env(env: Mapping[str, str], workspace: Path) -> dict[str, str]:
    """Return *env* for a command that runs without permission; reads the user's git files."""
    kept = {name: value for name, value in unattended_env(env).items() if not _is_removed(name)}
    if "PATH" in kept:
        kept["PATH"] = _path(kept["PATH"], workspace)
    own = [(each.name, each.value) for each in _own_settings(env) if each.value is not None]
    settings: dict[str, str] = {"GIT_CONFIG_COUNT": str(len(own) + len(GIT_SETTINGS))}
    for number, (key, value) in enumerate((*own, *GIT_SETTINGS)):
        settings |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**kept, **GIT_VARIABLES, **settings}


def _is_removed(name: str) -> bool:
    return name in REMOVED or name.startswith(("GIT_", "LD_"))


def _path(entries: str, workspace: Path) -> str:
    """Return PATH without relative entries and entries inside the workspace."""
    kept = [each for each in entries.split(os.pathsep) if Path(each).is_absolute()]
    outside = [each for each in kept if not Path(each).resolve().is_relative_to(workspace)]
    return os.pathsep.join(outside) or os.defpath


# ── The user's own settings ─────────────────────────────────────────────────────────────────────


def _own_settings(env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the user's and the system's settings that name no program, in git's order."""
    for path in _files(env):
        for setting in read_config(path):
            if setting is not None and _is_carried(setting):
                yield setting
    yield from filter(_is_carried, _from_variables(env))


def _is_carried(setting: Setting) -> bool:
    return names_no_program(setting) or setting.name in CARRIED


def _files(env: Mapping[str, str]) -> Iterable[Path]:
    """Return the configuration files of the system and the user."""
    home, found = env.get("HOME", ""), list[Path]()
    if env.get("GIT_CONFIG_NOSYSTEM", "0") in {"", "0", "false", "no", "off"}:
        found.append(Path(env.get("GIT_CONFIG_SYSTEM") or "/etc/gitconfig"))
    if env.get("GIT_CONFIG_GLOBAL"):
        return [*found, Path(env["GIT_CONFIG_GLOBAL"])]
    xdg = env.get("XDG_CONFIG_HOME") or (home and f"{home}/.config")
    if xdg:
        found.append(Path(xdg, "git", "config"))
    if home:
        found.append(Path(home, ".gitconfig"))
    return found


def _from_variables(env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings in `GIT_CONFIG_COUNT` and its companions."""
    count = env.get("GIT_CONFIG_COUNT", "")
    known = int(count) if count.isascii() and count.isdecimal() and len(count) < 4 else 0
    for number in range(known):
        name = env.get(f"GIT_CONFIG_KEY_{number}", "")
        section, _, rest = name.partition(".")
        subsection, dot, key = rest.rpartition(".")
        if section and key:
            value = env.get(f"GIT_CONFIG_VALUE_{number}", "")
            yield Setting(section.lower(), subsection if dot else None, key.lower(), value)
