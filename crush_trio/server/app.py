"""The application: routes registered, errors translated, nothing else.

`create_app` is given an open backend and makes the ASGI application over it. Opening and closing
the backend is the business of whoever runs the application. The routes know no backend of their
own: they are compiled once in a process, and each request brings the site it is for.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from inspect import iscoroutinefunction
from typing import Any, Final

import trio
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable
from quart import Response, request
from quart.utils import encode_headers
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from typing_extensions import override
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from crush_trio.log_context import logged_for
from crush_trio.server.answers import send_whole, with_cleanup
from crush_trio.server.bodies import BodyTooLarge, check_id
from crush_trio.server.direct import direct, refusal
from crush_trio.server.guard import GuardSettings, guarded
from crush_trio.server.http.exchange import take_whole_body
from crush_trio.server.http.hypercorn import safe_app
from crush_trio.server.routes import (
    agent,
    asks,
    docs,
    integrations,
    metrics,
    sessions,
    system,
    workspaces,
)
from crush_trio.server.routes import config as routes_config
from crush_trio.server.routes import runs as routes_native
from crush_trio.server.rules import MatchedRule
from crush_trio.server.server import Site, at_site, counted, note_route, site_of
from crush_trio.server.status import hint_headers

_GROUPS: Final = (
    system,
    workspaces,
    sessions,
    agent,
    asks,
    routes_config,
    integrations,
    routes_native,
    docs,
    metrics,
)


class OneTaskRequest(TrioASGIHTTPConnection):
    """Handles a request in the task that brought it, if the request has arrived whole.

    The framework takes two more tasks for each: one to receive the body and to notice that the client
    has left, one to handle it. They are taken for bodies that are still on their way, and under
    servers that leave it to the application to notice.
    """

    @override
    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Have the request handled, and send the answer."""
        body = take_whole_body(self.scope)
        if body is None:
            await super().__call__(receive, send)
            return
        request = self._create_request_from_scope(send)
        request.body.set_result(body)
        response = await self.app.handle_request(request)
        if isinstance(response, Response) and isinstance(response.response, DataBody):
            headers = encode_headers(response.headers)
            await send_whole(send, response.status_code, headers, response.response.data)
        else:
            await self._send_response(send, response)


class RoutedRequest(TrioRequest):
    """A request that is spared what the framework would find out about it for nothing.

    Its body is limited as its site has it; the framework would have one limit for all sites.
    """

    @override
    def __init__(self, *args: Any, **more: Any) -> None:
        more["max_content_length"] = site_of(more["scope"]).bodies.size
        super().__init__(*args, **more)

    @cached_property
    @override
    def content_length(self) -> int | None:
        """Return how long the body says it is; it is the server that sees to that being true."""
        for name, value in self.scope["headers"]:
            if name == b"content-length" and value.isdigit():
                return int(value)
        return None

    @property
    @override
    def blueprints(self) -> list[str]:
        """Return the groups whose hooks apply: none, for no group has any."""
        return []


class App(QuartTrio):
    """An application whose plain functions are called where they are.

    The framework would hand a view that is no coroutine to a thread. Ours is plain because it never
    waits: it decides something in one step, and must do so on Trio's own thread.
    """

    request_class: type[TrioRequest] = RoutedRequest
    asgi_http_class: type[TrioASGIHTTPConnection] = OneTaskRequest

    @override
    def ensure_async(self, func: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return *func* as something to await, without a thread."""
        if iscoroutinefunction(func):
            return func

        async def called(*args: object, **kwargs: object) -> object:
            await trio.lowlevel.checkpoint()
            return func(*args, **kwargs)

        return called


def create_app(site: Site, guard: GuardSettings | None = None) -> ASGIFramework:
    """Return the ASGI application that serves *site* to whom *guard* lets in.

    This costs next to nothing, and any number of sites can be served side by side.
    """
    settings = GuardSettings() if guard is None else guard
    app = with_cleanup(safe_app(at_site(site, routed()), site.backend.sizes))
    return counted(guarded(direct(site, app), settings), site.meters)


@cache
def routed() -> App:
    """Return the routes of every site, with what becomes of their errors."""
    app = App("crush_trio", static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None  # streams last
    app.url_rule_class = MatchedRule
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False  # an id that is missing is not another route
    app.url_value_preprocessor(_prepare)
    for group in _GROUPS:
        app.register_blueprint(group.routes())
    app.register_error_handler(HTTPException, _refuse_http)
    app.register_error_handler(Exception, _refuse)
    return app


def _prepare(_endpoint: str | None, values: dict[str, Any] | None) -> None:
    """Hand a route its site; refuse ids that no id of ours can be, before anything looks for them."""
    if values is not None:  # there is such a route
        assert request.url_rule is not None
        note_route(request.scope, request.url_rule.rule)
        for name, value in values.items():
            check_id(str(value), name)
        values["site"] = site_of(request.scope)


def _refuse(error: Exception) -> Response:
    """Answer what was refused on purpose, and what went wrong in here (B18)."""
    with _logged_for_its_workspace():
        status, body = refusal(error)
    hints = {name.decode(): value.decode() for name, value in hint_headers(error)}
    return Response(body, status, hints, content_type="application/json")


def _refuse_http(error: HTTPException) -> Response:
    """Answer what the framework refused: no such route, no such method, too large."""
    if isinstance(error, RequestEntityTooLarge):
        size = site_of(request.scope).bodies.size
        return _refuse(BodyTooLarge(f"the limit is {size} bytes"))
    status = error.code or 500
    text = "404 page not found" if status == 404 else error.name
    headers = {name: value for name, value in error.get_headers() if name == "Allow"}
    return Response(f"{text}\n", status, headers, content_type="text/plain; charset=utf-8")


def _logged_for_its_workspace() -> AbstractContextManager[None]:
    """Have what is logged about a request belong to the workspace that its address names, if any."""
    named = (request.view_args or {}).get("wid")
    return nullcontext() if named is None else logged_for(str(named))
