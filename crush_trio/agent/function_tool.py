"""`FunctionTool`: an async function as a tool; `as_tool` accepts both functions and tools.

The name of the function is that of the tool, its docstring is the description, and its parameters are the
arguments: those without a default are required, and `Annotated[int, About("…")]` describes one. A
parameter annotated `ToolCall` gets the call itself, by which the function can ask for permission or
report progress; the model does not see it.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Final, NewType, Union, get_args, get_origin, get_type_hints

import attrs
import orjson
from attrs import field, frozen

from crush_trio.agent.part_checks import check_tool
from crush_trio.tools.base import Tool, ToolCall, ToolResult, read_arguments, schema_of
from crush_trio.wire.fields import JsonObject

_KINDS: Final = "str, int, float, bool, a StrEnum, list[…] or an attrs class of these, or … | None"
_NAMED: Final = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@frozen(kw_only=True)
class FunctionTool:
    """Satisfies `Tool` with an async function. Made by `as_tool`."""

    name: str
    description: str = field(repr=False)
    parameters: JsonObject = field(repr=False)
    parallel: bool = False
    _function: Callable[..., Awaitable[object]] = field(repr=False)
    _arguments: type[Any] = field(repr=False)
    _lists: frozenset[str] = field(repr=False)
    """The parameters that are lists; decoded arguments are tuples."""
    _call: str | None = field(repr=False)
    """The parameter that gets the call."""

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Call the function with the model's arguments."""
        given: dict[str, object] = attrs.asdict(
            read_arguments(call.input, self._arguments), recurse=False
        )
        for name in self._lists & given.keys():
            given[name] = _with_lists(given[name])
        if self._call is not None:
            given[self._call] = call
        return result_of(self.name, await self._function(**given))


def _with_lists(value: object) -> object:
    """Return the tuples of decoded arguments as lists, also those inside."""
    return [_with_lists(each) for each in value] if isinstance(value, tuple) else value


def result_of(name: str, value: object) -> ToolResult:
    """Return what a function returned as a result: text as it is, None as nothing, the rest as JSON."""
    match value:
        case ToolResult():
            return value
        case str():  # names of files that are no UTF-8 have surrogates, which cannot be stored
            return ToolResult(content=value.encode(errors="replace").decode())
        case None:
            return ToolResult(content="done")
    try:
        return ToolResult(content=orjson.dumps(value).decode())
    except TypeError:
        raise TypeError(
            f"the tool {name} returned a {type(value).__name__}: return text, a ToolResult, or what JSON "
            "can hold"
        ) from None


def as_tool(given: Tool | Callable[..., Awaitable[object]]) -> Tool:
    """Return a tool that was checked; from an async function, the tool that calls it.

    Raises a `TypeError` that says what is wrong and what to write instead.
    """
    if inspect.isfunction(given) or inspect.ismethod(given):
        return check_tool(_from_function(given))
    return check_tool(given)  # type: ignore[arg-type]  # the check is whether it is one


def as_tools(given: Iterable[Tool | Callable[..., Awaitable[object]]]) -> tuple[Tool, ...]:
    """Return tools that were checked, no two of the same name."""
    listed: object = given
    if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
        raise TypeError(f"tools is a {type(listed).__name__}: write a list, `tools=[add]`")
    tools = tuple(map(as_tool, given))
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"two tools have the name {name}: rename one of them")
    return tools


def _from_function(function: Callable[..., Any]) -> FunctionTool:
    name = function.__name__
    if inspect.isasyncgenfunction(function):
        raise TypeError(
            f"the tool {name} is an async generator: return the whole result, and tell how far it is with "
            "`call.progress(…)` of a parameter `call: ToolCall`"
        )
    if not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"the tool {name} is not an async function: write `async def {name}(…)`, with "
            "`await trio.to_thread.run_sync(…)` around what blocks"
        )
    if not (about := inspect.getdoc(function)):
        raise TypeError(f"the tool {name} has no docstring: say what it does, for the model")
    hints = _hints(name, function)
    fields: dict[str, Any] = {}
    lists, call = set(), None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if hint is ToolCall:
            call = parameter.name
            continue
        if parameter.kind not in _NAMED:
            raise TypeError(
                f"the tool {name} has the parameter {parameter}: a model gives arguments by name, so write "
                "each as a named parameter"
            )
        if parameter.name == "self":
            raise TypeError(
                f"the tool {name} has the parameter self: pass a method of an object, `tools=[thing.{name}]`"
            )
        if hint is None:
            raise TypeError(
                f"the parameter {parameter.name} of the tool {name} has no annotation: write "
                f"`{parameter.name}: str`, or another of {_KINDS}"
            )
        shape = _shape(hint, name, parameter.name)
        if shape != hint:
            lists.add(parameter.name)
        absent = parameter.default is inspect.Parameter.empty
        fields[parameter.name] = attrs.field(
            type=shape,
            default=attrs.NOTHING if absent else parameter.default,
            alias=parameter.name,  # attrs would drop a leading underscore
        )
    arguments = attrs.make_class("Arguments", fields, frozen=True, kw_only=True)
    return FunctionTool(
        name=name,
        description=about,
        parameters=schema_of(arguments),
        function=function,
        arguments=arguments,
        lists=frozenset(lists),
        call=call,
    )


def _hints(name: str, function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except RecursionError:
        raise  # see _check_class
    except Exception as error:  # a name in quotes may be anything
        raise TypeError(f"the annotations of the tool {name} cannot be read: {error}") from error


def _shape(hint: Any, tool: str, parameter: str) -> Any:  # noqa: ANN401  # a class, an alias or a union
    """Return the annotation of a parameter as arguments classes write it: with tuples for lists."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_shape(args[0], tool, parameter), *hint.__metadata__)]
    if isinstance(hint, NewType):
        return _shape(hint.__supertype__, tool, parameter)
    if origin in {Union, UnionType} and len(args) == 2 and NoneType in args:
        inner = next(each for each in args if each is not NoneType)
        return _shape(inner, tool, parameter) | None
    if origin is list and len(args) == 1:
        return GenericAlias(tuple, (_shape(args[0], tool, parameter), ...))
    if origin is tuple and args[1:] == (...,):
        return GenericAlias(tuple, (_shape(args[0], tool, parameter), ...))
    if hint is ToolCall:
        raise TypeError(
            f"the parameter {parameter} of the tool {tool} gets the call: write `{parameter}: ToolCall`"
        )
    if attrs.has(hint):
        _check_class(hint, tool, parameter)
        return hint
    if hint in {str, int, float, bool} or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return hint
    raise TypeError(
        f"the parameter {parameter} of the tool {tool} is annotated with {_shown(hint)}, which has no form "
        f"that a model can give: use {_KINDS}"
    )


def _check_class(cls: type[Any], tool: str, parameter: str) -> None:
    """Raise a `TypeError` for an attrs class with a field that arguments cannot have."""
    hints = _hints(tool, cls)
    try:
        for each in attrs.fields(cls):
            _shape(hints.get(each.name), tool, f"{parameter}.{each.name}")
    except RecursionError:
        raise TypeError(
            f"the parameter {parameter.partition('.')[0]} of the tool {tool} has a class that contains "
            "itself: its schema would have no end"
        ) from None


def _shown(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
