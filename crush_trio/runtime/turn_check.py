"""Checks of what a program gives to a workspace: its turn and its submissions.

`takes` says whether a function takes arguments.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress

from crush_trio.runtime.outcome import Submission


def check_turn(turn: object) -> None:
    """Raise a `TypeError` that says what to write if *turn* cannot be called with a run."""
    name = getattr(turn, "__name__", type(turn).__name__)
    if not callable(turn):
        problem = f"the turn is a {name}, not a function"
    elif inspect.isasyncgenfunction(turn):
        problem = f"the turn {name} is an async generator"
    elif not takes(turn, None):
        problem = f"the turn {name} does not take one argument, the run"
    else:
        return
    raise TypeError(f"{problem}: write `async def turn(run): return Completion(text=…)`")


def check_submission(submission: object) -> None:
    """Raise a `TypeError` for a prompt or anything else in place of a `Submission`."""
    if not isinstance(submission, Submission):
        raise TypeError(
            f"the submission is a {type(submission).__name__}: write "
            "`Submission(session_id=SessionId(…), prompt=…)`"
        )


def takes(function: Callable[..., object], *given: object) -> bool:
    """Whether *function* can be called with as many positional arguments as are *given*.

    True for what has no signature, such as some functions written in C.
    """
    with suppress(ValueError):
        signature = inspect.signature(function)
        try:
            signature.bind(*given)
        except TypeError:
            return False
    return True
