"""Routes about configuration and the project (wire.md §3.8).

A change is written to the file that its scope names, read back, and then told to every client of the
workspace. What would make the configuration invalid is refused, and nothing is written.

The prompt by which a client has a project introduced to agents.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from quart import Blueprint, Response

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.config.context_files import DEFAULT_INITIALIZE_AS
from crush_trio.config.errors import NotConfigured
from crush_trio.server.answers import answer, nothing, read_body
from crush_trio.server.server import Site
from crush_trio.wire.config import TokenImport
from crush_trio.wire.requests import (
    ConfigCompactRequest,
    ConfigModelRequest,
    ConfigRemoveRequest,
    ConfigSetRequest,
    ProviderKeyRequest,
    RefreshOAuthRequest,
)
from crush_trio.wire.views import NeedsInit, PromptText

_TEXT = """\
Write `{name}` for this project: the file that tells coding agents how to work here.

Look first: the manifest and build files, the CI configuration, the readme, the layout, a few typical \
source and test files, and any instructions for agents that exist already. Then write, in at most 60 lines:

- how to build, lint and test, with the command for a single test;
- how the code is laid out, and what belongs where;
- the conventions that are visible in the code: formatting, imports, types, names, errors, tests;
- what surprised you, and what a newcomer would get wrong.

Write only what you have seen. If `{name}` exists, improve it and keep what is right. Do not copy \
whole files into it, and leave out advice that holds for every project."""


def init_prompt(name: str) -> str:
    """Return what to ask the agent so that it writes the file *name*."""
    return _TEXT.format(name=name)


_BASE = "/v1/workspaces/<wid>"


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("config", __name__)
    _writes(group)
    _project(group)
    return group


def _writes(group: Blueprint) -> None:
    changes: dict[str, tuple[type[Any], Callable[[HostedWorkspace, Any], Awaitable[object]]]] = {
        "set": (ConfigSetRequest, lambda o, b: o.config.set(b.scope, b.key, b.value)),
        "remove": (ConfigRemoveRequest, lambda o, b: o.config.remove(b.scope, b.key)),
        "model": (
            ConfigModelRequest,
            lambda o, b: o.config.set_model(b.scope, b.model_type, b.model),
        ),
        "compact": (
            ConfigCompactRequest,
            lambda o, b: o.config.set_compact_mode(b.scope, b.enabled),
        ),
        "provider-key": (
            ProviderKeyRequest,
            lambda o, b: o.config.set_provider_key(b.scope, b.provider_id, b.kind, b.api_key),
        ),
        "refresh-oauth": (RefreshOAuthRequest, _refresh_oauth),
    }
    for name, (body, change) in changes.items():
        group.add_url_rule(
            f"{_BASE}/config/{name}", f"write_{name}", _writer(body, change), methods=["POST"]
        )

    @group.post(f"{_BASE}/config/import-copilot")
    def import_copilot(site: Site, wid: str) -> Response:
        """Answer that there was no token: other programs' files are not looked into."""
        site.opened(wid)
        return answer(TokenImport(token=None, success=False))


def _writer(
    body: type[Any], change: Callable[[HostedWorkspace, Any], Awaitable[object]]
) -> Callable[[Site, str], Awaitable[Response]]:
    async def write(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        await change(opened, await read_body(body))
        return nothing()

    return write


async def _refresh_oauth(opened: HostedWorkspace, body: RefreshOAuthRequest) -> None:
    """Read the configuration again: a token that another program renewed is then the one in use."""
    if body.provider_id not in opened.config.current.providers:
        await trio.lowlevel.checkpoint()
        raise NotConfigured(f"provider {body.provider_id}")
    await opened.config.reload()


def _project(group: Blueprint) -> None:
    @group.get(f"{_BASE}/project/needs-init")
    async def needs(site: Site, wid: str) -> Response:
        return answer(NeedsInit(needs_init=await site.opened(wid).config.needs_init()))

    @group.post(f"{_BASE}/project/init")
    async def init(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        await opened.config.mark_initialized()
        opened.config_changed()
        return nothing()

    @group.get(f"{_BASE}/project/init-prompt")
    def prompt(site: Site, wid: str) -> Response:
        options = site.opened(wid).config.current.config.options
        return answer(
            PromptText(prompt=init_prompt(options.initialize_as or DEFAULT_INITIALIZE_AS))
        )
