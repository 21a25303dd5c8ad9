"""`judge`: decides whether a shell command runs without permission, needs it, or is refused.

The text is parsed as a shell parses it (H10, H11, L18). `ReadOnly` is for commands that provably only
read, inside the workspace: each program and each option is on a list, and nothing is substituted,
assigned, redirected or sent to the background. Everything else needs permission, also what cannot be
parsed. So a gap in the lists costs an unnecessary question and never lets a command through. See
docs/decisions/005-commands.md.

`Blocked` is for network access, system administration and other privileges (H11). The names of such
programs are searched wherever a command can occur: in pipelines, lists, subshells and substitutions, in
the string of `sh -c` or `eval`, in a here-document for a shell, in the arguments of programs that run
other programs, and after `find -exec`. This stops a model that does not know better. It is no protection
against a name hidden in a script file or a variable; such a command still needs permission.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path, PurePosixPath
from typing import Final

from attrs import frozen

from crush_trio.config.rules.programs import SHELLS
from crush_trio.tools.shell.read_only import (
    CANNOT_WRITE,
    DEV_NULL,
    READ_ONLY_PROGRAMS,
    CommandScope,
)
from crush_trio.tools.shell.read_only_git import find_is_read_only, git_is_read_only
from crush_trio.tools.shell.script import Redirection, Script, SimpleCommand, Unreadable, Word
from crush_trio.tools.shell.script_parser import read_script


@frozen
class ReadOnly:
    """The command only reads, and only inside the workspace: it needs no permission."""


@frozen
class NeedsPermission:
    """The command may change something: it needs permission."""

    reason: str


@frozen
class Blocked:
    """The command is always refused."""

    reason: str


Verdict = ReadOnly | NeedsPermission | Blocked


def judge(
    command: str,
    *,
    workspace: Path,
    working_dir: Path,
    private: tuple[Path, ...] = (),
    sandboxed: bool,
) -> Verdict:
    """Judge a shell command. Reads the file system to resolve paths and to check git repositories.

    *private* are resolved paths inside the workspace that need permission like those outside. If the
    command will not be *sandboxed*, only programs that cannot write by construction are read-only.
    A read-only command must run with the environment of `unasked_env`.
    """
    try:
        script = read_script(command)
    except Unreadable as exc:
        return NeedsPermission(f"cannot be read: {exc}")
    refused = refusal(script)
    if refused is not None:
        return Blocked(refused)
    place = CommandScope(working_dir.resolve(), workspace.resolve(), private)
    if not sandboxed and not _names(*script.commands) <= CANNOT_WRITE:
        return NeedsPermission("may do more than look, and there is no sandbox")
    return ReadOnly() if _looks(script, place) else NeedsPermission("may do more than look")


# ── Commands that only read ─────────────────────────────────────────────────────────────────────

INPUTS: Final = frozenset({"<"})
OUTPUTS: Final = frozenset({">", ">>", "&>", "&>>", ">|"})
DUPLICATES: Final = frozenset({">&", "<&"})


def _looks(script: Script, place: CommandScope) -> bool:
    """Whether a script is a sequence of commands that only read."""
    if not script.plain or not script.commands or not place.holds(Word(text=".")):
        return False
    for command in script.commands:
        if not _is_plain(command, place):
            return False
        if command.words[0].text == "cd":
            if not _enters(script, command, place):
                return False
            place = place.entered(command.words[1].text)
        elif not _program_looks(command.words, place):
            return False
    return True


def _is_plain(command: SimpleCommand, place: CommandScope) -> bool:
    """Whether a command has only a program, literal arguments and harmless redirections."""
    return (
        bool(command.words)
        and not command.assignments
        and all(word.literal and not word.exotic for word in command.words)
        and not command.words[0].globs
        and all(_is_harmless(redirection, place) for redirection in command.redirections)
    )


def _is_harmless(redirection: Redirection, place: CommandScope) -> bool:
    """Whether a redirection reads a file inside the workspace, or discards output."""
    target = redirection.target
    if not target.literal or target.exotic or target.globs:
        return False
    if redirection.operator in DUPLICATES:
        return target.text in {"1", "2"}
    if redirection.operator in OUTPUTS:
        return target.text == DEV_NULL
    return redirection.operator in INPUTS and place.holds(target)


def _program_looks(words: tuple[Word, ...], place: CommandScope) -> bool:
    name, rest = words[0].text, words[1:]
    match name:
        case "echo":
            return all(place.holds(word) for word in rest if word.globs)
        case "git":
            return git_is_read_only(rest, place)
        case "find":
            return find_is_read_only(rest, place)
        case "command":
            return len(rest) == 2 and rest[0].text in {"-v", "-V"} and not rest[1].globs
        case _:
            return name in READ_ONLY_PROGRAMS and READ_ONLY_PROGRAMS[name].allows(rest, place)


def _enters(script: Script, command: SimpleCommand, place: CommandScope) -> bool:
    """Whether a `cd` certainly leads to a directory inside, before the following commands run.

    Only if every command is joined to the next by `&&`, or by `|` to one that is not `cd`: after a
    failed `cd`, or one in a pipeline, the following commands run in another directory. Not with `..`:
    a shell resolves it by the names in its working directory, not by the links behind them.
    """
    in_order = all(
        before.operator == "&&" or (before.operator == "|" and "cd" not in _names(before, after))
        for before, after in pairwise(script.commands)
    )
    if not in_order or len(command.words) != 2:
        return False
    path = command.words[1]
    return (
        not path.globs
        and not path.text.startswith("-")
        and ".." not in path.text.split("/")
        and place.holds(path)
        and (place.directory / path.text).is_dir()
    )


def _names(*commands: SimpleCommand) -> set[str]:
    return {command.words[0].text for command in commands if command.words}


# ── Commands that are always refused ────────────────────────────────────────────────────────────


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NETWORK: Final = _words(
    "aria2c axel curl curlie ftp http httpie links lynx nc ncat netcat scp sftp socat ssh telnet w3m wget xh"
    " chrome chromium firefox safari"
)
PRIVILEGES: Final = _words("doas pkexec su sudo")
PACKAGES: Final = _words(
    "apk apt apt-cache apt-get aptitude dnf dpkg emerge flatpak home-manager makepkg opkg pacman paru pkg"
    " pkg_add pkg_delete rpm snap yay yum zypper"
)
SYSTEM: Final = _words(
    "at batch chkconfig crontab fdisk firewall-cmd halt ifconfig ip iptables mkfs mount netstat nft parted pfctl"
    " poweroff reboot route service shutdown systemctl systemd-run ufw umount"
)
REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(NETWORK, "it reaches the network"),
    **dict.fromkeys(PRIVILEGES, "it takes other privileges"),
    **dict.fromkeys(PACKAGES, "it manages the packages of the system"),
    **dict.fromkeys(SYSTEM, "it administers the system"),
}


@frozen
class Pattern:
    """Refused arguments of a program: these verbs in this order, and one of the options if any."""

    verbs: tuple[str, ...]
    options: frozenset[str] = frozenset()

    def fits(self, words: Sequence[str]) -> bool:
        """Whether the arguments match, whatever other options they contain."""
        plain = tuple(word for word in words if not word.startswith("-"))
        named = {name for word in words for name in (word, word.partition("=")[0])}
        return plain[: len(self.verbs)] == self.verbs and (
            not self.options or not self.options.isdisjoint(named)
        )


_GLOBAL: Final = frozenset({"-g", "--global", "--location=global"})
_BEYOND: Final = frozenset({"--user", "--break-system-packages", "--root", "--prefix"})
_EXEC: Final = frozenset({"-exec", "--exec"})
_INSTALL: Final = ("install", "i", "add", "update", "upgrade", "link")

PATTERNS: Final[Mapping[str, tuple[Pattern, ...]]] = {
    "npm": tuple(Pattern((verb,), _GLOBAL) for verb in _INSTALL),
    "pnpm": tuple(Pattern((verb,), _GLOBAL) for verb in _INSTALL),
    "bun": tuple(Pattern((verb,), _GLOBAL) for verb in _INSTALL),
    "yarn": (Pattern(("global",)),),
    "pip": (Pattern(("install",), _BEYOND),),
    "pip3": (Pattern(("install",), _BEYOND),),
    "gem": (Pattern(("install",)),),
    "brew": tuple(Pattern((verb,)) for verb in ("install", "reinstall", "uninstall", "upgrade")),
    "port": (Pattern(("install",)),),
    "nix-env": (Pattern((), frozenset({"-i", "-iA", "--install"})),),
    "go": (Pattern(("test",), _EXEC), Pattern(("run",), _EXEC)),
}
"""Installations outside the workspace, and options that run another program."""


def refusal(script: Script) -> str | None:
    """Return why *script* is refused, None if it is not."""
    return next(_refusals(script), None)


def _refusals(script: Script) -> Iterator[str]:
    for command in script.commands:
        words = (*command.assignments, *command.words)
        targets = (redirection.target for redirection in command.redirections)
        for inner in chain.from_iterable(word.scripts for word in (*words, *targets)):
            yield from _refusals(inner)
        yield from _refused(command.words)
    for document in script.documents:
        for inner in document.scripts:
            yield from _refusals(inner)
    yield from _in_texts(_read_by_shells(script))


def _refused(words: Sequence[Word]) -> Iterator[str]:
    """Yield why a command, or a command among its arguments, is refused."""
    if not words or not words[0].literal:
        return
    name, rest = PurePosixPath(words[0].text).name, words[1:]
    if name in REASONS:
        yield f"{name}: {REASONS[name]}"
    if name.startswith("mkfs."):
        yield f"{name}: {REASONS['mkfs']}"
    if any(pattern.fits([word.text for word in rest]) for pattern in PATTERNS.get(name, ())):
        yield f"{name}: it installs beyond the workspace, or runs another program"
    for inner in _wrapped(name, rest):
        yield from _refused(inner)
    yield from _in_texts(_scripts_among(name, rest))


def _in_texts(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        try:
            script = read_script(text)
        except Unreadable:
            continue
        yield from _refusals(script)


# ── Programs that run programs ──────────────────────────────────────────────────────────────────

# These tables say where in its arguments a program has the command that it runs, so that the command can
# be searched. `config.rules.programs` has names only, of far more programs: no pattern may cover one of
# them, whether its arguments can be read or not. A test checks that it has all names of these tables.

LINE_RUNNERS: Final = _words("env parallel script watch")
"""Programs that accept a whole command line in one argument."""

WRAPPERS: Final[Mapping[str, str]] = {
    "builtin": "",
    "busybox": "",
    "command": "",
    "doas": "uC",
    "env": "uC",
    "exec": "a",
    "ionice": "cnpPu",
    "nice": "n",
    "nohup": "",
    "parallel": "jIaSdLnN",
    "script": "",
    "setsid": "",
    "stdbuf": "ioe",
    "strace": "oepsuSEa",
    "time": "fo",
    "timeout": "sk",
    "unbuffer": "",
    "watch": "n",
    "xargs": "IELnPsda",
}
"""Programs that run the command in their arguments, with the letters of their valued options."""

POSITIONS: Final[Mapping[str, int]] = {"timeout": 1, "flock": 1, "chroot": 1, "taskset": 1}
"""How many operands precede the command."""

QUERIES: Final = frozenset({"-v", "-V"})
"""With these options, `command` only prints what it would run."""


def _wrapped(name: str, words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    """Yield the commands among the arguments of a program that runs them."""
    if name == "find":
        for at, word in enumerate(words):
            if word.text in {"-exec", "-execdir", "-ok", "-okdir"}:
                yield words[at + 1 :]
    elif name.startswith("python") and words and words[0].text == "-m":
        yield words[1:]
    elif name == "command" and words and words[0].text in QUERIES:
        return
    elif name in WRAPPERS or name in POSITIONS:
        yield _behind_options(words, WRAPPERS.get(name, ""), POSITIONS.get(name, 0))


def _behind_options(words: Sequence[Word], valued: str, operands: int) -> Sequence[Word]:
    """Skip options, their values, assignments and *operands* words; return the rest."""
    at = 0
    while at < len(words):
        text = words[at].text
        if text.startswith("-") and len(text) > 1:
            takes_next = len(text) == 2 and text[1] in valued
            at += 2 if takes_next else 1
        elif words[at].assigns:
            at += 1
        elif operands:
            operands -= 1
            at += 1
        else:
            break
    return words[at:]


def _scripts_among(name: str, words: Sequence[Word]) -> Iterator[str]:
    """Yield the shell scripts among the arguments of a program."""
    if name == "eval":
        yield " ".join(word.text for word in words)
    elif name in LINE_RUNNERS:
        yield from (word.text for word in words if word.quoted)
    elif name in SHELLS:
        for option, script in pairwise(words):
            if option.text.startswith("-") and "c" in option.text.partition("--")[0]:
                yield script.text


def _read_by_shells(script: Script) -> Iterator[str]:
    """Yield the here-documents and here-strings that shells in *script* read as their input."""
    documents = iter(script.documents)
    for command in script.commands:
        for redirection in command.redirections:
            document = next(documents, None) if redirection.operator in {"<<", "<<-"} else None
            source = redirection.target if redirection.operator == "<<<" else document
            if source is not None and _is_shell(command):
                yield source.text


def _is_shell(command: SimpleCommand) -> bool:
    return bool(command.words) and PurePosixPath(command.words[0].text).name in SHELLS
