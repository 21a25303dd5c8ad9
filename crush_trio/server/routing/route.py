"""`Route`: one row of the route table, and `Matcher`, which finds the row of a request.

A row states its method, path, handler, body, answer and errors once. The Quart application, the direct
path, the OpenAPI document, the docs page, the coverage page, the metrics' route label and the tests
read the same rows (`server.routes.ROUTES`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, field, frozen

from crush_trio.server.audit_notes import Audited
from crush_trio.server.bodies import query_client_id
from crush_trio.server.status import usual_status
from crush_trio.server.tokens import Right
from crush_trio.wire.fields import wire_fields

if TYPE_CHECKING:
    from crush_trio.server.routing.call import Call

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
HTML: Final = "text/html; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type for a scraper that does not ask for another form."""

REAL: Final = "real"
"""The state of a route that does what it says."""

EXTENSIONS: Final = "Extensions"
"""The group of the routes that the Go program does not have."""

WORKSPACE: Final = "/v1/workspaces/{wid}"
"""The prefix of every route about one workspace."""

STORE_ERRORS: Final = (
    *("data_directory_lost", "disk_failed", "disk_full"),
    *("store_busy", "store_failed", "store_read_only"),
)
"""The errors of any route that reads or writes a store."""

_PARAMETER: Final = re.compile(r"{(\w+)}")
_READING: Final = {"GET", "HEAD", "OPTIONS"}


@frozen
class Query:
    """A parameter in the query of a URL."""

    name: str
    about: str
    check: Callable[[str | None], object] | None = None
    """Raises what is wrong with a required parameter, before the body is read; None if it is optional."""
    shape: Any = field(default=str, kw_only=True)
    """The type that documents give it; the handler reads the text."""
    least: int | None = field(default=None, kw_only=True)
    most: int | None = field(default=None, kw_only=True)
    usual: Any = field(default=None, kw_only=True)
    """What its absence means, if that is a value."""
    expected: bool = field(kw_only=True)
    """Whether documents call it required. True also if its absence gives the answer of the Go program."""
    format: str = field(default="", kw_only=True)
    """What kind of text it is, such as `uuid`."""

    @expected.default
    def _expected(self) -> bool:
        return self.check is not None


CLIENT: Final = Query("client_id", "the client's UUID", query_client_id, format="uuid")
RECEIPT: Final = Query(
    "receipt",
    "`1` to answer when the runs that were hit have ended, `0` to answer at once; there is no body without it",
    shape=bool,
    expected=True,
)


@frozen
class Route:
    """One method of one path: everything that describes it. `{…}` in the path are parameters.

    Shapes (*body*, *answer*) are types as the codec knows them: a wire class, `tuple[X, ...]`,
    `Mapping[str, X]`, a plain type; None where there is none.
    """

    method: str
    path: str
    about: str
    handler: Callable[["Call"], Any] = field(repr=False)
    """Returns the answer's value, or a `Reply`. A plain function must not wait; it runs in one step."""
    name: str = field(kw_only=True)
    """What it does in two or three words: the name of its method in generated clients."""
    answer: Any = field(default=None, kw_only=True)
    """The shape of what the handler returns; of each event, if *media* is `EVENTS`."""
    body: Any = field(default=None, kw_only=True)
    """Decoded, with its ids checked, before the handler is called."""
    query: tuple[Query, ...] = field(default=(), kw_only=True)
    status: int = field(default=200, kw_only=True)
    empty_status: int = field(kw_only=True)
    """The status if the handler returns None. A route that also has an *answer* needs another one.

    Generated clients read the body of a status always, or never. So a status has either an answer or
    none, at least for requests with all that documents call required.
    """
    remark: Any = field(default=None, kw_only=True)
    """The shape of a body that clients may ignore, of an answer that is described as empty."""
    media: str = field(default=JSON, kw_only=True)
    errors: tuple[str, ...] = field(default=(), kw_only=True)
    """The codes of the errors that are this route's own; `codes` has all of them."""
    error_status: Callable[[str], int] = field(default=usual_status, kw_only=True, repr=False)
    """Returns the status of an error's code on this route."""
    needs_workspace: bool = field(default=True, kw_only=True)
    """Whether an unknown `{wid}` is refused before the query and the body are looked at.

    False for routes where the Go program does not look at all, and for those that answer other
    mistakes first; these look it up themselves and name `workspace_not_found` in *errors*.
    """
    changes: bool = field(kw_only=True)
    """Whether a command of the agent is refused here: whether the route does more than read."""
    right: Right = field(kw_only=True)
    """The right that a caller's token must include: by default `watch` for GET, else `admin`."""
    open_to_all: bool = field(default=False, kw_only=True)
    """Whether the row also answers callers without the token that others need; the guard holds for them."""
    probe: bool = field(default=False, kw_only=True)
    """Whether programs that watch the server may ask, by whatever name or address they reach it.

    Such a row is open to all, and answers a stranger nothing about the user.
    """
    audit: Audited | None = field(default=None, kw_only=True)
    """What a request leaves in the audit; None leaves nothing."""
    stored: bool = field(default=False, kw_only=True)
    """Whether the store alone can answer, so that no server needs to run the workspace."""
    names_workspace: str | None = field(default=None, kw_only=True)
    """The parameter of the query that names a workspace, on a row whose path does not."""
    stops: bool = field(default=False, kw_only=True)
    """Whether it stops runs, also of a workspace whose server has ended."""
    direct: bool = field(default=False, kw_only=True)
    """Whether a request that has arrived whole is answered without Quart, which costs less."""
    state: str = field(default=REAL, kw_only=True)
    """`REAL`, or what the route does instead."""
    group: str = field(default="", kw_only=True)
    """The heading that it stands under in the documents."""
    waits: bool = field(init=False, repr=False)

    @empty_status.default
    def _empty_status(self) -> int:
        return self.status

    @changes.default
    def _changes(self) -> bool:
        return self.method not in _READING

    @right.default
    def _right(self) -> Right:
        return Right.WATCH if self.method == "GET" else Right.ADMIN

    @waits.default
    def _waits(self) -> bool:
        return iscoroutinefunction(self.handler)

    @property
    def extension(self) -> bool:
        """Whether the Go program does not have this route."""
        return self.group == EXTENSIONS

    @property
    def answers(self) -> Mapping[int, Any]:
        """The shape of each answer that is no error, by status; None where there is no body."""
        found = {self.status: self.answer}
        return found if self.empty_status == self.status else {self.empty_status: None, **found}

    @property
    def body_optional(self) -> bool:
        """Whether a request without a body is one with nothing in it: each key has a default."""
        return self.body is not None and _all_optional(self.body)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of every error that a request which reached this route may be answered with."""
        found = set(self.errors)
        if "wid" in self.parameters and self.needs_workspace:
            found.add("workspace_not_found")
        if self.parameters:
            found.add("id_invalid")
        if self.changes:
            found.add("own_process")
        if self.body is not None:
            found |= {"bad_request", "body_too_large", "id_invalid"}
        return tuple(sorted(found, key=lambda code: (self.error_status(code), code)))


@cache
def _all_optional(body: type[Any]) -> bool:
    return not any(each.required for each in wire_fields(body))


def under(
    prefix: str, *routes: Route, group: str, errors: tuple[str, ...] = ()
) -> tuple[Route, ...]:
    """Return *routes* below *prefix*, with their *group* and the *errors* that they share."""
    return tuple(
        evolve(route, path=prefix + route.path, errors=route.errors + errors, group=group)
        for route in routes
    )


_Segment = tuple[str, str]


@define(eq=False)
class Matcher:
    """Finds the row of a method and a path. A literal segment wins over a parameter, as in Quart.

    Plain comparisons instead of patterns: compiling a pattern for each row takes 5 ms of every start.
    """

    _rows: dict[tuple[str, int], list[tuple[Route, tuple[_Segment, ...]]]] = field(
        factory=dict, init=False
    )
    """Rows and their segments, by method and number of segments, the more literal ones first."""

    @classmethod
    def of(cls, routes: Iterable[Route]) -> "Matcher":
        """Return a matcher of *routes*."""
        matcher = cls()
        for route in sorted(routes, key=_parameter_places):
            segments = tuple(_segment(text) for text in route.path.split("/"))
            matcher._rows.setdefault((route.method, len(segments)), []).append((route, segments))
        return matcher

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """Return the row and the values of its parameters; None if there is no such row."""
        given = path.split("/")
        for route, segments in self._rows.get((method, len(given)), ()):
            values: dict[str, str] = {}
            for (literal, name), text in zip(segments, given, strict=True):
                if name and text:
                    values[name] = text
                elif name or text != literal:
                    break
            else:
                return route, values
        return None


def _segment(text: str) -> _Segment:
    """Return a segment of a path as its literal text and the name of its parameter; one is empty."""
    return ("", text[1:-1]) if text.startswith("{") else (text, "")


def _parameter_places(route: Route) -> list[bool]:
    return [segment.startswith("{") for segment in route.path.split("/")]
