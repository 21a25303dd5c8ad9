"""The limits on sizes and numbers, each named once: default, unit, meaning and error code.

The names are those that users write: in `crush_trio.limits` of a file of their own, in
`CRUSH_TRIO_LIMITS`, and after `crush-trio serve --limit`. Times that a workspace waits are in
`runtime.limits`, those of a server beside the code that waits.

How long a workspace waits; sizes and numbers are in `crush_trio.limits`.
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
    """How long the store may take for an acceptance before the prompt is refused."""
    notice: float = 0.25
    """How long the store may take for an ending before the run is shown as ending."""
    retry: float = 1.0
    """The time between two attempts to store an ending."""
    join: float = 15.0
    """How long closing waits for the runs to end; endings that are not stored then never are."""
    courtesy: int = 0
    """Checkpoints that a stored run yields before it begins, so that its caller is answered first.

    The caller is woken in that moment and takes one step, which may come after the first of these:
    with two the answer is out before the run begins to work.
    """


VARIABLE: Final = "CRUSH_TRIO_LIMITS"

KIB: Final = 1024
MIB: Final = 1024 * KIB


class Unit(StrEnum):
    """What a limit counts."""

    BYTES = "bytes"
    CHARACTERS = "characters"
    SECONDS = "seconds"
    NUMBER = ""


@frozen(kw_only=True)
class About:
    """What is known of a limit besides its value: `code` is the error that meets what is over it."""

    name: str
    default: float
    unit: Unit
    meaning: str
    code: str


def _limit(default: float, unit: Unit, code: str, meaning: str) -> Any:  # noqa: ANN401  # as `field`
    metadata = {"unit": unit, "code": code, "meaning": meaning}
    return field(default=default, validator=_positive, metadata=metadata)


def _positive(_instance: object, attribute: "Attribute[float]", value: object) -> None:
    """Refuse what a program has set to something that no limit can be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise _wrong(attribute.name, repr(value))


@frozen(kw_only=True)
class SizeLimits:
    """How much a server takes, keeps and does at once. A client over a limit hurts only itself."""

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
        """Return these limits with *values* in place of some, as people write them.

        Raises `LimitInvalid` for the first that is wrong.
        """
        read: dict[str, Any] = {name: read_value(name, value) for name, value in values.items()}
        return evolve(self, **read)

    def differing(self) -> dict[str, float]:
        """Return the limits that are not as they come, by name."""
        values = {each.name: getattr(self, each.name) for each in ABOUT.values()}
        return {name: value for name, value in values.items() if value != ABOUT[name].default}


DEFAULTS: Final = SizeLimits()
"""The limits unless something else is said."""


def _about(attribute: "Attribute[Any]") -> About:
    default: Any = attribute.default
    return About(name=attribute.name, default=default, **attribute.metadata)


ABOUT: Final[Mapping[str, About]] = {each.name: _about(each) for each in fields(SizeLimits)}
"""All limits, by name."""


# ── As people write them ────────────────────────────────────────────────────────────────────────

_SUFFIXES: Final = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMG", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMG", 1)},
}
_WRITTEN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", re.ASCII)


def read_value(name: str, value: object) -> float:
    """Return the value of the limit *name* that *value* stands for: a number, or text with one."""
    about = ABOUT.get(name)
    if about is None:
        raise LimitInvalid(f"there is no limit named {name!r}; write one of {', '.join(ABOUT)}")
    found = _number(value, about.unit)
    if found is None or not 0 < found < 2**53:
        raise _wrong(name, repr(value))
    if about.unit is Unit.SECONDS:
        return found
    if not found.is_integer():
        raise _wrong(name, repr(value))
    return int(found)


def _number(value: object, unit: Unit) -> float | None:
    """Return the number that is meant; None if it is none."""
    if isinstance(value, str):
        written = _WRITTEN.fullmatch(value.strip())
        if written is None or (written[2] and unit is not Unit.BYTES):
            return None
        factor = _SUFFIXES.get(written[2])
        return None if factor is None else float(written[1]) * factor
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _wrong(name: str, said: str) -> LimitInvalid:
    examples = {
        Unit.BYTES: "a number of bytes above 0, such as 65536, 64KiB or 16MiB",
        Unit.SECONDS: "a number of seconds above 0, such as 10 or 2.5",
    }
    wanted = examples.get(ABOUT[name].unit, "a whole number above 0, such as 100")
    return LimitInvalid(f"{name} cannot be {said}; write {wanted}")


def read_pair(text: str) -> tuple[str, float]:
    """Return the limit that *text* sets: its name and its value. Raises `LimitInvalid`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise LimitInvalid(f"{text!r} sets nothing; write NAME=VALUE, such as answer=32MiB")
    return name.strip(), read_value(name.strip(), value)


def read_pairs(text: str) -> dict[str, float]:
    """Return the limits that *text* sets: NAME=VALUE,NAME=VALUE. Empty text sets none."""
    return dict(read_pair(each) for each in text.split(",") if each.strip())


def shown(name: str, value: float) -> str:
    """Return a value of the limit *name* for people."""
    unit = ABOUT[name].unit
    if unit is Unit.BYTES:
        return shown_bytes(int(value))
    return f"{value:g} {unit}" if unit is Unit.SECONDS else f"{int(value):,} {unit}".rstrip()


def shown_bytes(size: int) -> str:
    """Return a number of bytes for people, in full unless it is a whole number of KiB or MiB."""
    for factor, suffix in ((MIB, "MiB"), (KIB, "KiB")):
        if size and size % factor == 0:
            return f"{size // factor:,} {suffix}"
    return f"{size:,} bytes"


def byte_size(text: str) -> int:
    """Return how many bytes *text* takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
