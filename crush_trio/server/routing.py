"""How a route is described: the form of a row in the catalogue, and what many rows share."""

import re
from typing import Any, Final

from attrs import evolve, frozen

from crush_trio.server.status import STATUS

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
HTML: Final = "text/html; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""What a scraper gets that does not ask for another form."""

REAL: Final = "real"
"""The state of a route that does what it says."""


@frozen
class Query:
    """A parameter in the query of a URL, always text."""

    name: str
    about: str
    required: bool = False


@frozen
class Route:
    """One method of one path. `{…}` in the path are parameters.

    Shapes are types as the codec knows them: a wire class, `tuple[X, ...]`, `Mapping[str, X]`, a
    plain type; None where there is no body. If `media` is `EVENTS`, the answer is the shape of each
    event of a stream.
    """

    method: str
    path: str
    about: str
    answer: Any = None
    body: Any = None
    status: int = 200
    query: tuple[Query, ...] = ()
    errors: tuple[str, ...] = ()
    """Codes of the errors that are this route's own; `codes` has all of them."""
    state: str = REAL
    checks_workspace: bool = True
    """Whether an unknown workspace in the path is an error; the Go program does not always look."""
    body_optional: bool = False
    answer_optional: bool = False
    """Whether the answer has a body only for those who asked for one, or need it."""
    media: str = JSON

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of every error that a request which reached this route may be answered with."""
        found = set(self.errors)
        if "wid" in self.parameters and self.checks_workspace:
            found.add("workspace_not_found")
        if self.parameters:
            found.add("id_invalid")
        if self.body is not None:
            found |= {"bad_request", "body_too_large", "id_invalid"}
        return tuple(sorted(found, key=lambda code: (STATUS[code], code)))


WORKSPACE: Final = "/v1/workspaces/{wid}"
"""Where everything about one workspace is."""

STORE_ERRORS: Final = (
    *("data_directory_lost", "disk_failed", "disk_full"),
    *("store_busy", "store_failed", "store_read_only"),
)
"""What can become of any request that reads or writes a store."""

PART_OF_MESSAGES: Final = (
    Query("limit", "how many, the newest of them; all if it is left out"),
    Query("before", "the id of a message: only those that came before it"),
)
"""How to ask for some of the messages of a session."""

RECEIPT: Final = Query("receipt", "`1` to wait for what the cancel hit, and to be told of it")


def under(
    prefix: str, *routes: Route, errors: tuple[str, ...] = (), state: str = REAL
) -> tuple[Route, ...]:
    """Return *routes* below *prefix*, with the errors and the state they have in common.

    A route that has a state of its own keeps it.
    """
    return tuple(
        evolve(
            route,
            path=prefix + route.path,
            errors=route.errors + errors,
            state=state if route.state == REAL else route.state,
        )
        for route in routes
    )
