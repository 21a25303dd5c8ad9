"""Exit codes, the errors of the command line, and the advice printed with an error.

An expected error is printed as two lines: what happened, and what to do about it. The advice comes
from the table `ADVICE`; for an error that is not in it, it is the part of the message, or else of the
detail, after "; ".
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from crush_trio.errors import CrushError


class NotOurs(CrushError):
    """Another program than a crush_trio server answers at the address."""

    code = "not_ours"
    message = "another program answers there"


class IdAmbiguous(CrushError):
    """A shortened id that matches several ids."""

    code = "id_ambiguous"
    message = "several ids match"


class RuleUnknown(CrushError):
    """No permission rule has this id."""

    code = "rule_unknown"
    message = "there is no such permission rule; list them with: crush-trio permissions"


class FileInTheWay(CrushError):
    """`backup` to a file that exists: a copy replaces nothing."""

    code = "file_in_the_way"
    message = "this file exists already, and a backup replaces nothing; choose another name"


class NoData(CrushError):
    """`backup` of a directory that has no stored data."""

    code = "no_data"
    message = "there is no stored data; name a directory that was worked in, or an open workspace"


class NothingToContinue(CrushError):
    """`--continue` in a directory that has no session."""

    code = "nothing_to_continue"
    message = "there is no session here yet; leave out --continue to begin one"


class ModelUnknown(CrushError):
    """A model that no provider has, or that several have."""

    code = "model_unknown"
    message = "no such model"


class NoModel(CrushError):
    """`run` in a script, where no model is configured and the demo was not asked for."""

    code = "no_model"
    message = "no model is configured, so nothing was run"


class NoModelThere(CrushError):
    """The same with a server that does not use the environment of this shell."""

    code = "no_model_there"
    message = "no model is configured on the server, so nothing was run"


class NotTrusted(CrushError):
    """`trust --remove` for a directory that cannot be removed."""

    code = "not_trusted"
    message = "cannot be removed from the trusted directories"


class PromptMissing(CrushError):
    """`run` without a prompt."""

    code = "prompt_missing"
    message = "there is no prompt; write it as arguments, or pipe it in"


class OutputFailed(CrushError):
    """Standard output cannot be written to, for example because its disk is full."""

    code = "output_failed"
    message = "cannot write to standard output"


class ExitCode(IntEnum):
    """The exit codes of the program."""

    OK = 0
    FAILED = 1
    """The command or the run failed."""
    MISUSED = 2
    """The arguments or the environment are not valid."""
    NO_SERVER = 3
    """No server could be reached or started, or the connection to it was lost for good."""
    DENIED = 4
    """The run ended because a tool call was refused permission."""
    NO_MODEL = 5
    """No model is configured, and `--demo` was not given."""
    TIMED_OUT = 124
    """The run was cancelled because of `--timeout`."""
    CANCELLED = 130
    """The run was cancelled, by this command or by another client."""


EXIT_HELP: Final = (
    "Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 no server could be reached or started, "
    "4 ended because a permission was denied, 5 no model is configured, 124 timed out, 130 cancelled."
)

_CODES: Final[Mapping[str, ExitCode]] = {
    **dict.fromkeys(
        (
            *(
                "address_exposed",
                "bad_address",
                "limit_invalid",
                "socket_exposed",
                "token_unusable",
            ),
            *("token_exposed", "token_name_invalid", "prompt_missing", "public_url_invalid"),
            *("site_invalid", "store_unknown"),
        ),
        ExitCode.MISUSED,
    ),
    **dict.fromkeys(
        (
            *("server_unreachable", "answer_lost", "server_foreign", "server_shutting_down"),
            *("not_ours", "background_failed"),
        ),
        ExitCode.NO_SERVER,
    ),
    "no_model": ExitCode.NO_MODEL,
    "no_model_there": ExitCode.NO_MODEL,
}

ADVICE: Final[Mapping[str, str]] = {
    "answer_lost": "check whether the server still runs: crush-trio doctor",
    "server_shutting_down": "try again in a moment, or start a server: crush-trio serve",
    "session_not_found": "list the sessions of this directory: crush-trio sessions",
    "run_not_found": "list the sessions: crush-trio sessions",
    "session_busy": "wait for it, or stop it: crush-trio cancel SESSION",
    "unauthorized": "set CRUSH_TRIO_TOKEN to a token of the server; crush-trio token add makes one",
    "right_missing": "set CRUSH_TRIO_TOKEN to a token with more rights",
    "config_invalid": "correct the file, then check again: crush-trio config check",
    "config_not_expanded": "find out what is missing: crush-trio config check",
    "no_model": "set a key such as ANTHROPIC_API_KEY or OPENAI_API_KEY, describe a provider in crush.json, "
    "or let the offline demo answer with --demo",
    "no_model_there": "set a key in the environment of the server, describe a provider in its crush.json, or "
    "let the offline demo answer with --demo",
    "not_configured": "check what is configured: crush-trio doctor",
    "path_invalid": "name a directory that exists on the server's machine with --cwd",
    "not_a_crush_database": "give the path of a crush.db, or of the directory that contains it",
    "prompt_empty": "say what to do: crush-trio run PROMPT",
    "store_locked": "wait for it, or end it; commands of one server can share a directory",
    "internal_error": "look at the log of the server, or try again with --debug",
}
"""What to do about an error, by its code; for errors whose message does not say it."""

_OTHERWISE: Final[Mapping[str, str]] = {
    "config_not_written": "make the file and its directory writable for this user, or free some space",
    "tokens_unusable": "make the file and its directory usable for this user alone",
    "cannot_listen": "choose an address that this user may use with --host",
}
"""The same for errors that say it in some cases only."""

_FOR_PROGRAMS: Final = {"path_invalid"}
"""Errors whose own advice is for programs that use the API."""


def exit_code_of(error: CrushError) -> ExitCode:
    """Return the exit code of a command that failed with *error*."""
    return _CODES.get(error.code, ExitCode.FAILED)


def explain(error: CrushError) -> tuple[str, str]:
    """Return what happened, and what to do next; the latter may be empty."""
    message, detail = error.message, error.detail
    if not str(error).startswith(message):  # the text of an error that this version does not know
        message, detail = str(error), ""
    what, _, advice = message.partition("; ")
    if error.code in ADVICE:
        advice = ADVICE[error.code]
        if error.code in _FOR_PROGRAMS:
            detail = detail.partition("; ")[0]
    elif not advice:
        detail, _, advice = detail.partition("; ")
        advice = advice or _OTHERWISE.get(error.code, "")
    return (f"{what}: {detail}" if detail else what), advice


def expected(error: BaseException) -> CrushError | None:
    """Return *error*, or the first of its group, if all of it are `CrushError`s; otherwise None."""
    found = list(_leaves(error))
    ours = [each for each in found if isinstance(each, CrushError)]
    return ours[0] if len(ours) == len(found) else None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
