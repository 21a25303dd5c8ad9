"""`RequestState`: what the wrappers of the application know about one request."""

from contextlib import ExitStack
from typing import Any, Final, cast

import trio
from attrs import define, field
from hypercorn.typing import Scope

from crush_trio.server.guard import Caller
from crush_trio.server.routing.call import Call, Here
from crush_trio.server.routing.route import Route
from crush_trio.server.server import Meters, Server

NO_ROUTE: Final = "none"
"""The route label of a request that found no route: refused by the guard, or an unknown path."""

NO_STATUS: Final = "none"
"""The status label of a request whose client left before there was an answer."""

REQUEST: Final = "crush_trio.request"
"""The key in a scope under which the wrappers keep its `RequestState`."""


@define(eq=False)
class RequestState:
    """What the wrappers know about one request. It is counted once, when its answer begins."""

    method: str
    meters: Meters
    caller: Caller = field(factory=Caller, init=False)
    server: Server | None = field(default=None, init=False)
    here: Here = field(factory=Here, init=False)
    cleanup: ExitStack = field(factory=ExitStack, init=False)
    _route: str = field(default=NO_ROUTE, init=False)
    _since: float = field(factory=trio.current_time, init=False)
    _counted: bool = field(default=False, init=False)

    def call(self, route: Route, scope: Scope, values: dict[str, str]) -> Call:
        """Return the call of *route* that the request is; it is counted under that route."""
        assert self.server is not None
        self._route = route.path
        scope_of_call = cast("dict[str, Any]", scope)
        return Call(self.server, route, scope_of_call, values, self.cleanup, self.caller, self.here)

    def answered(self, status: str) -> None:
        """Count the request, if it was not yet: a stream that lasts for hours is answered at once."""
        if not self._counted:
            self._counted = True
            seconds = trio.current_time() - self._since
            self.meters.answered(self.method, self._route, status, seconds)


def state_of(scope: Scope) -> RequestState:
    """Return what the wrappers know about the request *scope*."""
    state = cast("dict[str, Any]", scope)[REQUEST]
    assert isinstance(state, RequestState)
    return state
