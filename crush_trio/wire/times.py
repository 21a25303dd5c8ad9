"""The few times the wire writes as text. All others are unix seconds, plain integers.

A `Timestamp` stays text in Python: peers write nanoseconds, which `datetime` would drop, and
nothing here ever computes with one.
"""

import re
from datetime import UTC, datetime
from typing import Final, NewType

Timestamp = NewType("Timestamp", str)
"""A point in time in RFC 3339 form, such as `2026-01-01T00:00:00Z`."""

ZERO_TIME: Final = Timestamp("0001-01-01T00:00:00Z")
"""What is written for "never": an empty string is not a time to peers."""

_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def timestamp(unix: int) -> Timestamp:
    """Return the RFC 3339 form of *unix* seconds; 0 is "never" and gives `ZERO_TIME`."""
    if not unix:
        return ZERO_TIME
    return Timestamp(datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def is_timestamp(text: str) -> bool:
    """Whether *text* names a time that exists, in RFC 3339 form."""
    if _RFC3339.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
