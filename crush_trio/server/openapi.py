"""The interface as an OpenAPI 3.1 document, made from the catalogue and the wire classes.

No shape is written down a second time: `wire.schema` makes them from the fields that the codec reads.

Answers and bodies are described apart. In an answer a key is required if it is always written. In a
body it is required if leaving it out is a mistake or hardly useful; the server forgives even that,
and reads an absent key or a null as the zero value. A class that is both has two schemas, and that
of the body ends in `Input`.

The page that says what of the wire is served, and what of the contract is not built yet.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Final

from crush_trio.server.catalogue import CATALOGUE, ROUTES
from crush_trio.server.extensions import EXTENSIONS
from crush_trio.server.routing import EVENTS, JSON, REAL, Route
from crush_trio.server.status import STATUS
from crush_trio.wire.schema import Schema, Schemas

_INTRODUCTION: Final = """\
# What of the wire is served

Every route of the `/v1` interface is there and has its exact shape. This page says which of them do
their work, and which still answer with a value that clients understand but that says nothing: an
empty one, or a fixed one. It ends with the items of the contract that are not built. It is printed
by `python -m crush_trio.server.openapi`; a test fails when the two differ.
"""

POSTPONED: Final = {
    "D18": "the titles of two single providers' errors (hyper, Copilot); theirs are titled as all others",
    "H9": "a shell of our own with a `jq`; commands are run by the system's",
    "H agentic_fetch, sourcegraph, web_fetch, web_search": "not offered to models",
    "I.2": "Bedrock, Vertex and hyper; OAuth and AWS sign-in; finding out models; downloading a catalogue",
    "I7": "built-in skills; there are none, and `view` knows no `crush:`. The rest of the rule holds",
    "I.4 MCP": "logging in by OAuth (a header or a token can be configured), channels, Docker's gateway",
}
"""What of D to I is not built, by item or by row of its table, and what there is instead."""


def coverage_markdown() -> str:
    """Return `docs/wire-coverage.md`."""
    done = sum(route.state == REAL for route in ROUTES)
    total = f"{done} of {len(ROUTES)} routes are real.\n"
    tables = [_table(name, group) for name, group in CATALOGUE.items()]
    return "\n".join(
        [_INTRODUCTION, total, *tables, _table("Extensions", EXTENSIONS), _postponed()]
    )


def _table(name: str, group: tuple[Route, ...]) -> str:
    rows = [f"| {route.method} `{route.path}` | {route.state} |\n" for route in group]
    return "".join([f"## {name}\n\n| Route | State |\n|---|---|\n", *rows])


def _postponed() -> str:
    rows = [f"| {items} | {what} |\n" for items, what in POSTPONED.items()]
    return "".join(["## Not built yet\n\n| Items | What |\n|---|---|\n", *rows])


if __name__ == "__main__":
    sys.stdout.write(coverage_markdown())


_ABOUT: Final = (
    "Agents that work in directories, for any number of clients. Unknown keys of a body are ignored; "
    "an absent key or a null means the zero value of its type. Integers are written without fraction. "
    "An error has a sentence for people and a code for programs; a path or a method that does not "
    "exist is answered with plain text."
)

_ERROR: Final[Schema] = {
    "type": "object",
    "description": "What went wrong: a sentence for people, a code for programs.",
    "properties": {
        "message": {"type": "string"},
        "code": {"type": "string", "enum": sorted(STATUS)},
    },
    "required": ["message", "code"],
}


def openapi_document(version: str) -> Schema:
    """Return the document that describes every route of the catalogue."""
    answers = Schemas()
    groups = {**CATALOGUE, "Extensions": EXTENSIONS}
    for route in _all(groups):
        if route.answer is not None:
            answers.of(route.answer)
    bodies = Schemas(incoming=True, taken=answers.components)
    paths: dict[str, Schema] = {}
    for tag, group in groups.items():
        for route in group:
            operation = _operation(route, tag, answers, bodies)
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    schemas = {**bodies.components, **answers.components, "Error": _ERROR}
    return {
        "openapi": "3.1.0",
        "info": {"title": "crush_trio", "version": version, "description": _ABOUT},
        "tags": [{"name": name} for name in groups],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, tag: str, answers: Schemas, bodies: Schemas) -> Schema:
    operation: Schema = {
        "tags": [tag],
        "summary": route.about,
        "operationId": _operation_id(route),
        "x-state": route.state,
    }
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {JSON: {"schema": bodies.of(route.body)}},
        }
    operation["responses"] = {str(route.status): _answer(route, answers), **_errors(route)}
    return operation


def _operation_id(route: Route) -> str:
    """Return a name for the route: its method and path, with nothing in it that is no letter."""
    words = route.path.removeprefix("/v1").replace("-", "/").replace(".", "/").split("/")
    return "_".join([route.method.lower(), *(word.strip("{}") for word in words if word)]) + (
        "_page" if route.path.endswith("/") else ""
    )


def _parameters(route: Route) -> list[Schema]:
    text = {"type": "string"}
    found: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in route.parameters
    ]
    found += [
        {
            "name": query.name,
            "in": "query",
            "required": query.required,
            "description": query.about,
            "schema": text,
        }
        for query in route.query
    ]
    if route.media == EVENTS:
        about = "the id of the last event that was read, to go on from there"
        found.append(
            {"name": "Last-Event-ID", "in": "header", "description": about, "schema": text}
        )
    return found


def _answer(route: Route, answers: Schemas) -> Schema:
    if route.answer is None:
        return {"description": "Done; there is no body."}
    schema = answers.of(route.answer)
    if route.media == EVENTS:
        about = "Server-sent events; the data of each is one JSON object."
        content: Schema = {"schema": {"type": "string"}, "x-event-schema": schema}
        return {"description": about, "content": {EVENTS: content}}
    about = "Done; there is not always a body." if route.answer_optional else "Done."
    return {"description": about, "content": {route.media: {"schema": schema}}}


def _errors(route: Route) -> Schema:
    """Return the answers that report a failure: one for each status, with its codes."""
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    by_status: dict[str, list[str]] = {}
    for code in route.codes:
        by_status.setdefault(str(int(STATUS[code])), []).append(f"`{code}`")
    found: Schema = {
        status: {"description": ", ".join(codes), "content": content}
        for status, codes in by_status.items()
    }
    about = "Refused before any route saw it, or failed in here."
    return {**found, "default": {"description": about, "content": content}}


def _all(groups: Mapping[str, Iterable[Route]]) -> Iterable[Route]:
    return (route for group in groups.values() for route in group)
