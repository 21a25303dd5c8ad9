"""Mistakes in the parts that a program brings are told by name, when the agent is opened."""

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest

from crush_trio import Finished, FinishReason, TextDelta, ToolCall, open_agent
from crush_trio.agent.function_tool import as_tool, as_tools
from crush_trio.agent.part_checks import check_callback, check_provider, check_tool
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.testing import ScriptedProvider, ScriptedTool


class Good:
    name, description, parallel, parameters = "good", "Does it.", False, {"type": "object"}

    async def run(self, call):
        raise NotImplementedError


def without(name):
    return type("Odd", (), {key: each for key, each in vars(Good).items() if key != name})()


def having(**given):
    return type("Odd", (Good,), given)()


async def two(self, call, more):
    raise NotImplementedError


def plain(self, call):
    raise NotImplementedError


async def generator(self, call):
    yield


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (Good, r"the tool Good is a class: pass an object, `Good\(\)`"),
        (without("name"), "the tool Odd has no name: write `name = "),
        (without("description"), "the tool good has no description: write `description = "),
        (without("parallel"), "the tool good has no parallel: write `parallel = False`"),
        (without("parameters"), r"the tool good has no parameters: write `parameters = schema_of"),
        (without("run"), "the tool good has no method run: write `async def run"),
        (having(name="two words"), "'two words' has a name that providers refuse"),
        (having(description=""), "good has an empty description"),
        (having(description=7), "description of the tool good is a int, not a str: write"),
        (having(parallel="no"), "parallel of the tool good is a str, not a bool"),
        (having(parameters={"type": "string"}), "good are no JSON Schema of an object: use"),
        (having(run=two), "run of the tool good does not take one argument, the call: write"),
        (having(run=plain), "run of the tool good is not a coroutine function: write"),
        (having(run=generator), "run of the tool good is not a coroutine function: write"),
        (7, "the tool int has no name"),
    ],
)
def test_a_tool_that_cannot_work_is_refused(tool, told):
    with pytest.raises(TypeError, match=told):
        check_tool(tool)


def test_tools_that_work_pass():
    @functools.wraps(Good.run)
    def wrapped(self, call):
        return Good.run(self, call)

    for tool in (Good(), having(run=wrapped), ScriptedTool("t")):
        assert check_tool(tool) is tool


async def untold(a: int):
    raise NotImplementedError


async def bare(a):
    """Does."""


async def starred(*a: int):
    """Does."""


async def mapped(a: dict[str, int]):
    """Does."""


async def unknown(a: "Nonsense"):  # noqa: F821
    """Does."""


async def wavering(call: ToolCall | None = None):
    """Does."""


@attrs.define
class Wrong:
    table: dict[str, int]


async def nested(a: list[Wrong]):
    """Does."""


@attrs.define
class Tree:
    branches: "list[Tree]"


async def endless(a: Tree):
    """Does."""


class Owner:
    async def method(self, a: int):
        """Does."""


async def generating(a: int):
    """Does."""
    yield a


def blocking(a: int):
    """Does."""


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (untold, "the tool untold has no docstring: say what it does"),
        (bare, "the parameter a of the tool bare has no annotation: write `a: str`"),
        (starred, "the tool starred has the parameter .*a: int: a model gives arguments by name"),
        (
            mapped,
            r"parameter a of the tool mapped is annotated with dict\[str, int\].*: use str, int",
        ),
        (unknown, "the annotations of the tool unknown cannot be read: name 'Nonsense'"),
        (blocking, r"the tool blocking is not an async function: write `async def blocking\(…\)`"),
        (generating, "the tool generating is an async generator: return the whole result"),
        (lambda: None, "<lambda> is not an async function"),
        (wavering, "the parameter call of the tool wavering gets the call: write `call: ToolCall`"),
        (nested, r"the parameter a.table of the tool nested is annotated with dict\[str, int\]"),
        (endless, "the parameter a of the tool endless has a class that contains itself"),
        (Owner.method, r"method has the parameter self: pass .*`tools=\[thing.method\]`"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(function, told):
    with pytest.raises(TypeError, match=told):
        as_tool(function)


def test_a_method_is_a_tool_without_its_self():
    class Counter:
        async def count(self, call: ToolCall, step: int = 1) -> int:
            """Counts."""

    assert list(as_tool(Counter().count).parameters["properties"]) == ["step"]


def test_tools_are_a_list_and_have_names_of_their_own():
    with pytest.raises(TypeError, match=r"tools is a Good: write a list, `tools=\[add\]`"):
        as_tools(Good())
    with pytest.raises(TypeError, match="two tools have the name good: rename one"):
        as_tools([Good(), Good()])


# ── Providers ───────────────────────────────────────────────────────────────────────────────────


class Bare:
    async def stream(self, request):
        yield TextDelta("hi")


class Coroutine:
    async def stream(self, request):
        return None


class Many:
    @asynccontextmanager
    async def stream(self, request, more):
        yield


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (Bare(), "stream of the provider p is an async generator: write `@asynccontextmanager`"),
        (Coroutine(), "stream of the provider p is a coroutine function: write `@asynccontextm"),
        (Many(), "stream of the provider p does not take one argument, the request: write"),
        (Bare, r"the provider p is a class: pass an object, `Bare\(…\)`"),
        (7, "the provider p is a int and has no method stream: write"),
    ],
)
def test_a_provider_that_cannot_work_is_refused(provider, told):
    with pytest.raises(TypeError, match=told):
        check_provider("p", provider)


def test_a_provider_that_works_passes():
    model = ScriptedProvider()
    assert check_provider("p", model) is model


class Direct:
    """Yields its parts from the block, where an iterator of them belongs."""

    @asynccontextmanager
    async def stream(self, request):
        yield TextDelta("hi")


class Text:
    """Yields text instead of parts."""

    @asynccontextmanager
    async def stream(self, request) -> AsyncIterator[object]:
        async def parts():
            yield "hi"
            yield Finished(reason=FinishReason.END_TURN)

        yield parts()


class Odd:
    """Yields one part, whose field is of a wrong type."""

    def __init__(self, part):
        self.part = part

    @asynccontextmanager
    async def stream(self, request) -> AsyncIterator[object]:
        async def parts():
            yield TextDelta("hi")
            yield self.part

        yield parts()


class Plain:
    """Returns its parts, where a context manager around them belongs."""

    def stream(self, request):
        async def parts():
            yield TextDelta("hi")

        return parts()


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (
            Plain(),
            "stream of the provider returned a async_generator: write `@asynccontextmanager`",
        ),
        (Odd(TextDelta(b"hi")), "gave a TextDelta whose text is a bytes, not a str"),
        (Odd(Finished(reason="stop")), "gave a Finished whose reason is a str, not a FinishReason"),
        (Direct(), "yielded a TextDelta: yield an async iterator of parts, once"),
        (Text(), "the provider gave a str as a part: write `yield TextDelta(…)`"),
    ],
)
async def test_what_shows_only_in_a_call_fails_the_run_with_what_to_write(provider, told, tmp_path):
    async with open_agent(provider=provider, directory=tmp_path) as agent:
        outcome = await (await agent.submit("hello")).wait()
        assert told in outcome.error


# ── Other arguments of open_agent ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"instructions": None}, "instructions is a NoneType: write text"),
        ({"directory": b"/tmp"}, "directory is a bytes: write a path"),
        ({"builtin_tools": ["bash"]}, "builtin_tools is a list: write True or False"),
        ({"config": "x"}, "config is a str: write a dict"),
        ({"config": {1: {}}}, "config has the entry 1, which is not of text"),
        ({"environment": []}, "environment is a list: write a dict of text"),
        ({"environment": {"A": 5}}, "environment has the entry 'A', which is not of text"),
    ],
)
async def test_an_argument_of_a_wrong_type_is_refused_by_name(given, told):
    with pytest.raises(TypeError, match=told):
        async with open_agent(provider="demo", **given):
            raise NotImplementedError


# ── Where they are checked ──────────────────────────────────────────────────────────────────────


def no(*_given):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (7, "permit is a int, not a function: write `p`"),
        (lambda: True, "permit does not take one argument: write `p`"),
        (generator, "permit is an async generator: return the answer instead: `p`"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused(callback, told):
    with pytest.raises(TypeError, match=told):
        check_callback("permit", callback, "p")


@pytest.mark.parametrize(
    "given",
    [
        {"tools": [without("run")]},
        {"provider": Bare()},
        {"permit": "yes"},
        {"permit": lambda: True},
        {"answer": 7},
    ],
)
async def test_an_agent_with_a_mistake_does_not_open(given, tmp_path):
    with pytest.raises(TypeError):
        async with open_agent(**{"provider": "demo", "directory": tmp_path, **given}):
            no()


@pytest.mark.parametrize("given", [{"extra_tools": lambda _: [Good]}, {"providers": {"p": Bare()}}])
@pytest.mark.real_clock
async def test_a_workspace_of_a_server_with_a_mistake_does_not_open(given, tmp_path):
    from crush_trio.backend.open import open_hosted_workspace
    from crush_trio.backend.settings import Terms, WorkspacePlan

    plan = WorkspacePlan(
        id="w", key=str(tmp_path), path=str(tmp_path), terms=Terms(), created_by=""
    )
    with pytest.raises(TypeError, match=r"pass an object|asynccontextmanager"):
        async with open_hosted_workspace(plan, WorkspaceSettings(**given)):
            no()
