"""How a failure is told in a log without what the client sent."""

import traceback
from collections.abc import Iterator


def places(error: BaseException) -> Iterator[str]:
    """Yield the kind and the line of code of each failure in *error*.

    Messages and tracebacks are left out: they can hold what the client sent, its token included.
    """
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from places(inner)
    else:
        trace = traceback.extract_tb(error.__traceback__)
        place = (
            f"{trace[-1].filename}:{trace[-1].lineno}" if trace else "no line: it was not raised"
        )
        yield f"{type(error).__name__} at {place}"
