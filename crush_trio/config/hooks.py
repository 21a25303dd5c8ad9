"""The events that hooks are run at, and how a configuration may spell them (I9).

There is one event: a tool is about to be used. Files of other programs spell its name in their own
way, so neither case nor underscores count. What stands under any other name is kept and never run, and
a notice says so.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from crush_trio.wire.config import HookConfig

PRE_TOOL_USE: Final = "PreToolUse"
"""What the event is called where we say its name."""

Hooks = Mapping[str, Sequence[HookConfig]]
"""The hooks of a configuration, by event."""


def hooks_before_tools(hooks: Hooks) -> Iterator[HookConfig]:
    """Return the hooks that are run before a tool, in the order of the configuration."""
    return (each for event, listed in hooks.items() if _is_before_tools(event) for each in listed)


def unknown_events(events: Iterable[str]) -> Iterator[str]:
    """Return those of *events* at which nothing is ever run."""
    return (event for event in events if not _is_before_tools(event))


def _is_before_tools(event: str) -> bool:
    return event.replace("_", "").lower() == PRE_TOOL_USE.lower()
