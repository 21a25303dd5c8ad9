"""Limits: `SizeLimits` on sizes and numbers, which users can set; `Limits` on waits.

Each size limit is defined once, with default, unit, meaning and error code. Its name is what users
write: in `crush_trio.limits` of their configuration file, in `CRUSH_TRIO_LIMITS`, and after
`crush-trio serve --limit`. Time limits of a server are beside the code that waits.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from attrs import Attribute, evolve, field, fields, frozen

from crush_trio.errors import LimitInvalid


@frozen(kw_only=True)
class Limits:
    """How long a workspace waits, in seconds."""

    accept: float = 5.0
    """The time for storing an acceptance, after which the prompt is refused."""
    notice: float = 0.25
    """The time for storing an ending, after which the run is shown as ending."""
    retry: float = 1.0
    """The time between two attempts to store an ending."""
    join: float = 15.0
    """How long closing waits for the runs to end; endings that are not stored by then never are."""
    courtesy: int = 0
    """Checkpoints that a stored run yields before it starts, so that its caller is answered first.

    The caller's task is woken at the same moment and needs one step, which may come after the first
    of these checkpoints; with two, the answer is sent before the run starts to work.
    """


VARIABLE: Final = "CRUSH_TRIO_LIMITS"

KIB: Final = 1024
MIB: Final = 1024 * KIB


class Unit(StrEnum):
    """The unit of a limit."""

    BYTES = "bytes"
    CHARACTERS = "characters"
    SECONDS = "seconds"
    NUMBER = ""


@frozen(kw_only=True)
class LimitInfo:
    """The description of a limit; `code` is the error for exceeding it."""

    name: str
    default: float
    unit: Unit
    meaning: str
    code: str


def _limit(default: float, unit: Unit, code: str, meaning: str) -> Any:  # noqa: ANN401  # as `field`
    metadata = {"unit": unit, "code": code, "meaning": meaning}
    return field(default=default, validator=_positive, metadata=metadata)


def _positive(_instance: object, attribute: "Attribute[float]", value: object) -> None:
    """Raise for a value that is not a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise _invalid(attribute.name, repr(value))


@frozen(kw_only=True)
class SizeLimits:
    """The size limits of a server. A client that exceeds one affects only itself."""

    answer: int = _limit(
        16 * MIB, Unit.BYTES, "answer_too_long", "One message of a model: text, reasoning and calls"
    )
    tool_output: int = _limit(
        MIB, Unit.BYTES, "", "What is kept of a tool's output; its middle is cut out"
    )
    title: int = _limit(1000, Unit.CHARACTERS, "title_too_long", "The title of a session")
    prompt: int = _limit(4 * MIB, Unit.BYTES, "prompt_too_long", "The text of a prompt")
    attachment: int = _limit(
        5 * MIB, Unit.BYTES, "attachment_too_large", "One attachment of a prompt"
    )
    attachments: int = _limit(
        20 * MIB, Unit.BYTES, "attachment_too_large", "All attachments of a prompt"
    )
    queue: int = _limit(10_000, Unit.NUMBER, "queue_full", "Prompts that wait in one session")
    active_runs: int = _limit(64, Unit.NUMBER, "", "Runs that are active at once; others wait")
    workspaces: int = _limit(256, Unit.NUMBER, "too_many_workspaces", "Workspaces at once")
    connections: int = _limit(
        4096,
        Unit.NUMBER,
        "too_many_connections",
        "Connections at once, and never more than half of the descriptors of the process",
    )
    heads: int = _limit(
        128,
        Unit.NUMBER,
        "request_too_slow",
        "Connections at once whose request's head has begun to arrive and is not complete",
    )
    head_time: float = _limit(
        10.0, Unit.SECONDS, "request_too_slow", "The arrival of a request's head"
    )
    reserve: int = _limit(
        64,
        Unit.NUMBER,
        "too_many_connections",
        "Descriptors that connections leave to stores, commands and models; at most an eighth",
    )

    def changed(self, values: Mapping[str, object]) -> "SizeLimits":
        """Return these limits with *values*, numbers or text, in place of some.

        Raises `LimitInvalid` for the first invalid one.
        """
        read: dict[str, Any] = {name: read_value(name, value) for name, value in values.items()}
        return evolve(self, **read)

    def differing(self) -> dict[str, float]:
        """Return the limits that differ from their defaults, by name."""
        values = {each.name: getattr(self, each.name) for each in LIMIT_INFO.values()}
        return {name: value for name, value in values.items() if value != LIMIT_INFO[name].default}


DEFAULTS: Final = SizeLimits()
"""The default limits."""


def _limit_info(attribute: "Attribute[Any]") -> LimitInfo:
    default: Any = attribute.default
    return LimitInfo(name=attribute.name, default=default, **attribute.metadata)


LIMIT_INFO: Final[Mapping[str, LimitInfo]] = {
    each.name: _limit_info(each) for each in fields(SizeLimits)
}
"""The description of each limit, by name."""


# ── Limits as text ──────────────────────────────────────────────────────────────────────────────

_SUFFIXES: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMG", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMG", 1)},
}
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", re.ASCII)


def read_value(name: str, value: object) -> float:
    """Return *value*, a number or text with one, as a value of the limit *name*."""
    about = LIMIT_INFO.get(name)
    if about is None:
        raise LimitInvalid(
            f"there is no limit named {name!r}; write one of {', '.join(LIMIT_INFO)}"
        )
    found = _number(value, about.unit)
    if found is None or not 0 < found < 2**53:
        raise _invalid(name, repr(value))
    if about.unit is Unit.SECONDS:
        return found
    if not found.is_integer():
        raise _invalid(name, repr(value))
    return int(found)


def _number(value: object, unit: Unit) -> float | None:
    """Return *value* as a number; None if it is not one."""
    if isinstance(value, str):
        written = _NUMBER.fullmatch(value.strip())
        if written is None or (written[2] and unit is not Unit.BYTES):
            return None
        factor = _SUFFIXES.get(written[2])
        return None if factor is None else float(written[1]) * factor
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _invalid(name: str, said: str) -> LimitInvalid:
    examples = {
        Unit.BYTES: "a number of bytes above 0, such as 65536, 64KiB or 16MiB",
        Unit.SECONDS: "a number of seconds above 0, such as 10 or 2.5",
    }
    wanted = examples.get(LIMIT_INFO[name].unit, "a whole number above 0, such as 100")
    return LimitInvalid(f"{name} cannot be {said}; write {wanted}")


def read_pair(text: str) -> tuple[str, float]:
    """Parse NAME=VALUE; return the name and the value of a limit. Raises `LimitInvalid`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise LimitInvalid(f"{text!r} sets nothing; write NAME=VALUE, such as answer=32MiB")
    return name.strip(), read_value(name.strip(), value)


def read_pairs(text: str) -> dict[str, float]:
    """Parse NAME=VALUE,NAME=VALUE; return the limits by name. Empty text sets none."""
    return dict(read_pair(each) for each in text.split(",") if each.strip())


def shown(name: str, value: float) -> str:
    """Return a value of the limit *name* as text for people."""
    unit = LIMIT_INFO[name].unit
    if unit is Unit.BYTES:
        return shown_bytes(int(value))
    return f"{value:g} {unit}" if unit is Unit.SECONDS else f"{int(value):,} {unit}".rstrip()


def shown_bytes(size: int) -> str:
    """Return a number of bytes as text, in KiB or MiB if that is a whole number."""
    for factor, suffix in ((MIB, "MiB"), (KIB, "KiB")):
        if size and size % factor == 0:
            return f"{size // factor:,} {suffix}"
    return f"{size:,} bytes"


def byte_size(text: str) -> int:
    """Return the length of *text* in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
