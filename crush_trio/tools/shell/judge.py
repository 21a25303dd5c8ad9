"""`judge`: decides whether a shell command runs without permission, needs it, or is refused.

The text is parsed as a shell parses it (H10, H11, L18). `ReadOnly` is for commands that provably only
read, inside the workspace: each program and each option is on a list, and nothing is substituted,
assigned, redirected or sent to the background. Everything else needs permission, also what cannot be
parsed. So a gap in the lists costs an unnecessary question and never lets a command through. See
docs/decisions/005-commands.md.
"""

from itertools import pairwise
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.tools.shell.blocked import refusal
from crush_trio.tools.shell.read_only import DEV_NULL, READ_ONLY_PROGRAMS, CommandScope
from crush_trio.tools.shell.read_only_git import find_is_read_only, git_is_read_only
from crush_trio.tools.shell.script import Redirection, Script, SimpleCommand, Unreadable, Word
from crush_trio.tools.shell.script_parser import read_script

INPUTS: Final = frozenset({"<"})
OUTPUTS: Final = frozenset({">", ">>", "&>", "&>>", ">|"})
DUPLICATES: Final = frozenset({">&", "<&"})


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
    command: str, *, workspace: Path, working_dir: Path, private: tuple[Path, ...] = ()
) -> Verdict:
    """Judge a shell command. Reads the file system only to resolve paths.

    *private* are resolved paths inside the workspace that need permission like those outside.
    """
    try:
        script = read_script(command)
    except Unreadable as exc:
        return NeedsPermission(f"cannot be read: {exc}")
    refused = refusal(script)
    if refused is not None:
        return Blocked(refused)
    place = CommandScope(working_dir.resolve(), workspace.resolve(), private)
    return ReadOnly() if _looks(script, place) else NeedsPermission("may do more than look")


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
