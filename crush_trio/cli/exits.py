"""How commands end: the exit codes, and what is said when one cannot do its work.

An expected failure is two short lines: what happened, and what to do about it. Most of our errors
have both in one sentence, with a semicolon between; for the others there is a table.

What can be wrong with a command. Each error says what happened and, after it, what to do.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from crush_trio.errors import CrushError


class NotOurs(CrushError):
    """Something answers at the address, and it is another program."""

    code = "not_ours"
    message = "another program answers there"


class IdAmbiguous(CrushError):
    """The beginning of an id that several things have in common."""

    code = "id_ambiguous"
    message = "several ids begin like that"


class NothingToContinue(CrushError):
    """The last session was wanted in a directory that has none."""

    code = "nothing_to_continue"
    message = "there is no session here yet; leave out --continue to begin one"


class ModelUnknown(CrushError):
    """A model that no provider has, or more than one."""

    code = "model_unknown"
    message = "no such model"


class PromptMissing(CrushError):
    """A run was wanted, and nobody said what it is to do."""

    code = "prompt_missing"
    message = "there is no prompt; write it as arguments, or pipe it in"


class ExitCode(IntEnum):
    """What a command's end means to the shell."""

    OK = 0
    FAILED = 1
    """It could not be done; of a run: it failed."""
    MISUSED = 2
    """The arguments or the environment make no sense."""
    NO_SERVER = 3
    """No server could be reached or started, or it went away for good."""
    DENIED = 4
    """The run ended because it was not allowed to do something."""
    TIMED_OUT = 124
    """The run was cancelled because its time was up."""
    CANCELLED = 130
    """The run was cancelled, by this terminal or by anybody else."""


EXIT_HELP: Final = (
    "Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 no server could be reached or started, "
    "4 ended because a permission was denied, 124 timed out, 130 cancelled."
)

_CODES: Final[Mapping[str, ExitCode]] = {
    **dict.fromkeys(
        ("address_exposed", "bad_address", "limit_invalid", "token_unusable"), ExitCode.MISUSED
    ),
    **dict.fromkeys(
        ("server_unreachable", "answer_lost", "server_shutting_down", "not_ours"),
        ExitCode.NO_SERVER,
    ),
}

ADVICE: Final[Mapping[str, str]] = {
    "answer_lost": "see whether the server still runs: crush-trio doctor",
    "server_shutting_down": "try again in a moment, or start a server: crush-trio serve",
    "session_not_found": "list the sessions of this directory: crush-trio sessions",
    "run_not_found": "list what runs with: crush-trio sessions",
    "session_busy": "wait for it, or stop it: crush-trio cancel SESSION",
    "unauthorized": "set CRUSH_TRIO_TOKEN to the token that the server was started with",
    "config_invalid": "correct the file, then check again: crush-trio config check",
    "config_not_expanded": "see what is missing: crush-trio config check",
    "not_configured": "see what is configured: crush-trio doctor",
    "not_a_crush_database": "give the path of a crush.db, or of the directory that contains it",
    "prompt_empty": "say what to do: crush-trio run PROMPT",
    "store_locked": "wait for it, or start a server that all can use: crush-trio serve",
    "internal_error": "look into the log of the server, or run again with --debug",
}
"""What to do about an error, by its code, where the error itself does not say, or not to us."""


def exit_code_of(error: CrushError) -> ExitCode:
    """Return the code with which a command ends that failed with *error*."""
    return _CODES.get(error.code, ExitCode.FAILED)


def explain(error: CrushError) -> tuple[str, str]:
    """Return what happened, and what to do next; the latter is empty if nobody knows."""
    if error.code in ADVICE:
        return str(error), ADVICE[error.code]
    what, _, following = str(error).partition("; ")
    return what, following


def expected(error: BaseException) -> CrushError | None:
    """Return the expected failure that *error* is or consists of; None if there is anything else."""
    found = list(_leaves(error))
    ours = [each for each in found if isinstance(each, CrushError)]
    return ours[0] if len(ours) == len(found) else None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
