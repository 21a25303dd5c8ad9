"""`quart_app`: the Quart-Trio application with every route."""

from collections.abc import Awaitable, Callable
from functools import cache

import trio
from quart import Response, current_app, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge, RequestTimeout

from crush_trio.errors import RequestTooSlow
from crush_trio.server.bodies import BodyTooLarge
from crush_trio.server.routes import FILES, ROUTES
from crush_trio.server.routing import Reply, Route, respond
from crush_trio.server.routing.call import BODILESS
from crush_trio.server.routing.state import state_of


@cache
def quart_app(body_size: int) -> QuartTrio:
    """Return the Quart application with every route, for servers with this limit on bodies.

    It knows no server: each request brings its own. So it is made once in a process, mostly.
    """
    app = QuartTrio("crush_trio", static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None  # streams last
    app.config["MAX_CONTENT_LENGTH"] = body_size
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False  # an id that is missing is not another route
    for route in (*ROUTES, *FILES):
        rule = route.path.replace("{", "<").replace("}", ">")
        name = f"{route.method} {route.path}".replace(".", "_")  # Quart allows no dots in names
        app.add_url_rule(rule, name, _view(route), methods=[route.method])
    app.before_request(_check_options)
    app.register_error_handler(HTTPException, _refuse_http)
    return app


def _view(route: Route) -> Callable[..., Awaitable[Response]]:
    """Return the Quart view of *route*."""

    async def view(**values: str) -> Response:
        call = state_of(request.scope).call(route, request.scope, values)
        return _response(await respond(call, _read_body), head_only=call.head_only)

    return view


async def _check_options() -> Response | None:
    """Refuse an impossible id in an OPTIONS request too, which Quart answers without a view."""
    await trio.lowlevel.checkpoint()
    if request.method != "OPTIONS" or request.url_rule is None:
        return None
    path = request.url_rule.rule.replace("<", "{").replace(">", "}")
    probe = Route("OPTIONS", path, "", lambda _call: None, name="probe", needs_workspace=False)
    call = state_of(request.scope).call(probe, request.scope, request.view_args or {})
    reply = await respond(call, b"")
    return None if reply.status == probe.status else _response(reply, head_only=False)


async def _read_body() -> bytes:
    """Return the body of the current request; raises `BodyTooLarge` and `RequestTooSlow`."""
    try:
        data = await request.get_data(cache=False, as_text=False)
    except RequestEntityTooLarge as error:
        raise BodyTooLarge(
            f"the limit is {current_app.config['MAX_CONTENT_LENGTH']} bytes"
        ) from error
    except RequestTimeout as error:
        raise RequestTooSlow from error
    assert isinstance(data, bytes)
    return data


def _response(reply: Reply, *, head_only: bool) -> Response:
    """Return an answer as Quart takes it; of an answer in pieces, HEAD gets none."""
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    body = reply.body if reply.pieces is None or head_only else reply.pieces
    response = Response(body, reply.status, headers)
    if "content-type" not in headers:
        del response.headers["Content-Type"]  # Quart's default; there is no body
    if reply.status in BODILESS:
        response.headers.pop("Content-Length", None)
    response.timeout = None
    return response


async def _refuse_http(error: HTTPException) -> Response:
    """Answer what Quart refused as the Go program does: no such route, no such method."""
    await trio.lowlevel.checkpoint()
    status = error.code or 500
    text = "404 page not found" if status == 404 else error.name
    headers = {name: value for name, value in error.get_headers() if name == "Allow"}
    return Response(f"{text}\n", status, headers, content_type="text/plain; charset=utf-8")
