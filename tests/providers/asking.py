"""What tests of providers ask, and sinks that keep what they are given."""

import trio
from attrs import define, field

from crush_trio.providers.base import Endpoint, ModelRequest, PromptMessage, TextDelta
from crush_trio.wire.config import CatalogModel, SelectedModel
from crush_trio.wire.messages import Role, TextPart


def user(text, *parts):
    """Return a message of the user's."""
    return PromptMessage(role=Role.USER, parts=(TextPart(text=text), *parts))


def assistant(*parts):
    return PromptMessage(role=Role.ASSISTANT, parts=parts)


def tool(result):
    return PromptMessage(role=Role.TOOL, parts=(result,))


def request(*messages, model=None, chosen=None, **more):
    """Return a request with as little typing as a test wants."""
    return ModelRequest(
        model=CatalogModel(**{"id": "m1", **(model or {})}),
        chosen=SelectedModel(**{"model": "m1", "provider": "p", **(chosen or {})}),
        messages=messages or (user("hi"),),
        **more,
    )


@define(eq=False)
class Recorder:
    """A sink that remembers: the parts it has, and how often it had to forget."""

    parts: list = field(factory=list)
    resets: int = 0

    async def take(self, part):
        self.parts.append(part)

    async def reset(self):
        self.resets += 1
        self.parts.clear()

    @property
    def text(self):
        return "".join(part.text for part in self.parts if isinstance(part, TextDelta))


def endpoint(type_name="openai-compat", base_url="http://model.test/v1", **more):
    """Return an endpoint whose key would be noticed if it got out."""
    given = {"provider": "p", "api_key": "key-nobody-may-see", "base_url": base_url, **more}
    return Endpoint(type=type_name, **given)


def dial_to(server):
    """Return a way to connect to a model server in memory, wherever one means to connect to."""

    async def dial(origin):
        await trio.lowlevel.checkpoint()
        return server.connect()

    return dial


async def read(provider, asked=None):
    """Return all parts of one answer."""
    async with provider.stream(asked or request()) as parts:
        return [part async for part in parts]
