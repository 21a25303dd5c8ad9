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
        *_, last = traceback.extract_tb(error.__traceback__)
        yield f"{type(error).__name__} at {last.filename}:{last.lineno}"
