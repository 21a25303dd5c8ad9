"""Checks of what a program brings to an agent: tools, providers and callbacks.

A mistake in one of them would show only when a model calls it, as an error of a run. These checks find it
when the agent is opened. Each raises a `TypeError` that names the part and says what to write instead.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from os import PathLike
from types import NoneType
from typing import Any, Final

from crush_trio.providers.base import Provider
from crush_trio.runtime.turn_check import takes
from crush_trio.tools.base import Tool

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools that every provider accepts."""

_WRITE_RUN: Final = "write `async def run(self, call: ToolCall) -> ToolResult`"
_WRITE_STREAM: Final = (
    "write `@asynccontextmanager` above `async def stream(self, request)` and yield an async iterator of "
    "parts in it, once"
)


def check_tool(tool: Tool) -> Tool:
    """Return *tool* if it has everything that the `Tool` protocol asks for."""
    if isinstance(tool, type):
        raise TypeError(f"the tool {tool.__name__} is a class: pass an object, `{tool.__name__}()`")
    name = _field(tool, type(tool).__name__, "name", str, 'name = "close_ticket"')
    if not _NAME.fullmatch(name):
        raise TypeError(
            f"the tool {name!r} has a name that providers refuse: use letters, digits, _ and -, at most 64"
        )
    about = 'description = "Closes a ticket."'
    if not _field(tool, name, "description", str, about):
        raise TypeError(
            f"the tool {name} has an empty description: say what it does, for the model"
        )
    _field(tool, name, "parallel", bool, "parallel = False")
    parameters = _field(tool, name, "parameters", Mapping, "parameters = schema_of(Arguments)")
    if parameters.get("type") != "object":
        raise TypeError(
            f"the parameters of the tool {name} are no JSON Schema of an object: use `schema_of(Arguments)`, "
            'or {"type": "object", "properties": {…}}'
        )
    run = getattr(tool, "run", None)
    if not callable(run):
        raise TypeError(f"the tool {name} has no method run: {_WRITE_RUN}")
    if inspect.isasyncgenfunction(run) or _is_plain(run):
        raise TypeError(f"run of the tool {name} is not a coroutine function: {_WRITE_RUN}")
    if not takes(run, None):
        raise TypeError(
            f"run of the tool {name} does not take one argument, the call: {_WRITE_RUN}"
        )
    return tool


def _field(tool: Tool, name: str, field: str, kind: type[Any], write: str) -> Any:  # noqa: ANN401
    """Return an attribute of a tool that must be there and be of this kind."""
    try:
        value = getattr(tool, field)
    except AttributeError:
        raise TypeError(f"the tool {name} has no {field}: write `{write}`") from None
    if not isinstance(value, kind):
        raise TypeError(
            f"{field} of the tool {name} is a {type(value).__name__}, not a {kind.__name__.lower()}: "
            f"write `{write}`"
        )
    return value


def _is_plain(function: Callable[..., Any]) -> bool:
    """Whether a function certainly is no coroutine function; one that is wrapped may return a coroutine."""
    own = inspect.isfunction(function) or inspect.ismethod(function)
    return (
        own and not hasattr(function, "__wrapped__") and not inspect.iscoroutinefunction(function)
    )


def check_provider(name: str, provider: Provider) -> Provider:
    """Return *provider* if its `stream` can be called as the `Provider` protocol says."""
    if isinstance(provider, type):
        raise TypeError(f"the provider {name} is a class: pass an object, `{provider.__name__}(…)`")
    stream = getattr(provider, "stream", None)
    if not callable(stream):
        raise TypeError(
            f"the provider {name} is a {type(provider).__name__} and has no method stream: {_WRITE_STREAM}"
        )
    if inspect.isasyncgenfunction(stream):
        raise TypeError(f"stream of the provider {name} is an async generator: {_WRITE_STREAM}")
    if inspect.iscoroutinefunction(stream):
        raise TypeError(f"stream of the provider {name} is a coroutine function: {_WRITE_STREAM}")
    if not takes(stream, None):
        raise TypeError(
            f"stream of the provider {name} does not take one argument, the request: {_WRITE_STREAM}"
        )
    return provider


def check_callback(name: str, callback: object, write: str) -> None:
    """Raise a `TypeError` if *callback* cannot be called with one argument."""
    if not callable(callback):
        raise TypeError(f"{name} is a {type(callback).__name__}, not a function: write `{write}`")
    if inspect.isasyncgenfunction(callback):
        raise TypeError(f"{name} is an async generator: return the answer instead: `{write}`")
    if not takes(callback, None):
        raise TypeError(f"{name} does not take one argument: write `{write}`")


def check_values(
    instructions: object,
    directory: object,
    builtin_tools: object,
    config: object,
    environment: object,
) -> None:
    """Raise a `TypeError` for an argument of `open_agent` that is of another type than it says."""
    wanted: tuple[tuple[str, object, tuple[type, ...], str], ...] = (
        ("instructions", instructions, (str,), 'text, instructions="…"'),
        ("directory", directory, (str, PathLike, NoneType), "a path, directory=Path(…)"),
        ("builtin_tools", builtin_tools, (bool,), "True or False"),
        ("config", config, (Mapping, NoneType), 'a dict, config={"options": {…}}'),
        (
            "environment",
            environment,
            (Mapping, NoneType),
            'a dict of text, environment={"HOME": "…"}',
        ),
    )
    for name, value, kinds, write in wanted:
        if not isinstance(value, kinds):
            raise TypeError(f"{name} is a {type(value).__name__}: write {write}")
    for name, values in (("config", config), ("environment", environment)):
        for key, value in (values or {}).items():  # type: ignore[attr-defined]  # a mapping by now
            if not isinstance(key, str) or (values is environment and not isinstance(value, str)):
                raise TypeError(f"{name} has the entry {key!r}, which is not of text")
