"""Routes about configuration and the project (wire.md §3.8).

This build has nothing to configure: what is sent is checked and acknowledged, and clients are told to
read the configuration again, which is the same as before.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from quart import Blueprint, Response

from crush_trio.errors import ProviderKeyInvalid
from crush_trio.server.answers import answer, nothing, read_body
from crush_trio.server.site import Site
from crush_trio.wire.catalog import TokenImport
from crush_trio.wire.requests import (
    ConfigCompactRequest,
    ConfigModelRequest,
    ConfigRemoveRequest,
    ConfigSetRequest,
    KeyKind,
    ProviderKeyRequest,
    RefreshOAuthRequest,
)
from crush_trio.wire.views import NeedsInit, PromptText

_BASE = "/v1/workspaces/<wid>"

_WRITES: dict[str, type[Any]] = {
    "set": ConfigSetRequest,
    "remove": ConfigRemoveRequest,
    "model": ConfigModelRequest,
    "compact": ConfigCompactRequest,
    "provider-key": ProviderKeyRequest,
    "refresh-oauth": RefreshOAuthRequest,
}


def _check(body: object) -> None:
    """Refuse what the shape alone does not: a key of a kind that nobody knows."""
    if isinstance(body, ProviderKeyRequest) and body.kind not in set(KeyKind):
        raise ProviderKeyInvalid(f"kind {body.kind!r}: write 'string' or 'oauth'")


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("config", __name__)

    def acknowledge(body: type[Any]) -> Callable[[Site, str], Awaitable[Response]]:
        async def write(site: Site, wid: str) -> Response:
            opened = site.opened(wid)
            _check(await read_body(body))
            opened.config_changed()
            return nothing()

        return write

    for name, body in _WRITES.items():
        group.add_url_rule(
            f"{_BASE}/config/{name}", f"write_{name}", acknowledge(body), methods=["POST"]
        )

    @group.post(f"{_BASE}/config/import-copilot")
    def import_copilot(site: Site, wid: str) -> Response:
        site.opened(wid)
        return answer(TokenImport(token=None, success=False))

    @group.get(f"{_BASE}/project/needs-init")
    def needs_init(site: Site, wid: str) -> Response:
        site.opened(wid)
        return answer(NeedsInit(needs_init=False))

    @group.post(f"{_BASE}/project/init")
    def init(site: Site, wid: str) -> Response:
        site.opened(wid).config_changed()
        return nothing()

    @group.get(f"{_BASE}/project/init-prompt")
    def init_prompt(site: Site, wid: str) -> Response:
        site.opened(wid)
        return answer(PromptText(prompt=""))

    return group
