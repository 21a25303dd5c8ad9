"""The documents made from the route table: the OpenAPI document, the docs page, the coverage page.

Also the JSON Schema of native events, which no route returns as a value.

No shape is written down a second time: `wire.schema` makes them from the fields that the codec reads.

Answers and bodies are described apart. In an answer a key is required if it is always written. In a
body it is required if leaving it out is a mistake or hardly useful; the server accepts even that, and
reads an absent key or a null as the zero value. A class that is both has two schemas, and that of the
body ends in `Input`.

The docs page is plain HTML, made from the OpenAPI document alone: no script, nothing to fetch. Run as a
module, this prints `docs/wire-coverage.md`; with the argument `events`, `docs/events.schema.json`.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from html import escape
from typing import Final

from crush_trio.server.routes import ROUTES
from crush_trio.server.routing import EVENTS, JSON, REAL, Query, Route
from crush_trio.server.status import STATUS
from crush_trio.wire.events import Envelope
from crush_trio.wire.fields import Json
from crush_trio.wire.schema import Schema, Schemas

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
        "code": {"type": "string", "x-extensible-enum": sorted(STATUS)},
        "detail": {"type": "string"},
    },
    "required": ["message", "code"],
}


def openapi_document(version: str) -> Schema:
    """Return the OpenAPI document that describes every route."""
    answers = Schemas()
    for route in ROUTES:
        for shape in (route.answer, route.remark):
            if shape is not None:
                answers.of(shape)
    answers.native_event()
    bodies = Schemas(incoming=True, taken=answers.components)
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        operation = _operation(route, answers, bodies)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    schemas = {**bodies.components, **answers.components, "Error": _ERROR}
    return {
        "openapi": "3.1.0",
        "info": {"title": "crush_trio", "version": version, "description": _ABOUT},
        "tags": [{"name": name} for name in _groups()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def event_schema() -> Schema:
    """Return the JSON Schema of the events of the native form, as objects with `event`, `id` and `data`."""
    schemas = Schemas(place="#/$defs/")
    native, envelope = schemas.native_event(), schemas.of(Envelope)
    about = (
        "One server-sent event of `GET /v1/workspaces/{wid}/events?form=native`: its name, its id if "
        "it has one, and its data. Readers ignore names and keys that they do not know. "
        f"An event of the crush form is `{envelope['$ref']}`."
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of crush_trio",
        "description": about,
        **native,
        "$defs": dict(sorted(schemas.components.items())),
    }


def _groups() -> Mapping[str, list[Route]]:
    """Return the routes by the heading that they stand under."""
    found: dict[str, list[Route]] = {}
    for route in ROUTES:
        found.setdefault(route.group, []).append(route)
    return found


def _operation(route: Route, answers: Schemas, bodies: Schemas) -> Schema:
    operation: Schema = {
        "tags": [route.group],
        "summary": route.about,
        "operationId": route.name,
        "x-state": route.state,
    }
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {JSON: {"schema": bodies.of(route.body)}},
        }
    told = {str(status): _answer(route, shape, answers) for status, shape in route.answers.items()}
    operation["responses"] = {**told, **_errors(route)}
    return operation


_IN_PATHS: Final = {
    "wid": "the workspace's id",
    "sid": "the session's id",
    "rid": "the run's id, the server's or the caller's",
    "mid": "the message's id",
    "gid": "the id of the permission request that was granted",
    "client_id": "the client's UUID",
    "name": "the language server's name",
}
"""What the parameters of paths are; of rules, `rid` is the rule's id."""

_LAST_EVENT_ID: Final[Schema] = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": (
        "the id of the last event that was applied, `<boot>-<number>`; the stream goes on after it, or "
        "with a `resync` if that place is lost. It wins over `after`. Events of the native form have ids"
    ),
    "schema": {"type": "string"},
}


def _parameters(route: Route) -> list[Schema]:
    found: list[Schema] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": "the rule's id" if "/rules/" in route.path and name == "rid" else about,
            "schema": {"type": "string"},
        }
        for name in route.parameters
        for about in (_IN_PATHS[name],)
    ]
    found += [
        {
            "name": query.name,
            "in": "query",
            "required": query.expected,
            "description": query.about,
            "schema": _query_schema(query),
        }
        for query in route.query
    ]
    return [*found, _LAST_EVENT_ID] if route.media == EVENTS else found


def _query_schema(query: Query) -> Schema:
    """Return the schema of a parameter; the values of an enum stand in it, as generators want it."""
    if isinstance(query.shape, type) and issubclass(query.shape, Enum):
        schema: Schema = {"type": "string", "enum": [member.value for member in query.shape]}
    else:
        schema = Schemas().of(query.shape)
    usual = query.usual.value if isinstance(query.usual, Enum) else query.usual
    more = {"minimum": query.least, "maximum": query.most, "default": usual, "format": query.format}
    return schema | {key: value for key, value in more.items() if value not in {None, ""}}


def _answer(route: Route, shape: Json, answers: Schemas) -> Schema:
    if shape is None and route.remark is not None:
        about = "Done; clients may ignore the body, if there is one."
        return {"description": about, "x-remark-schema": answers.of(route.remark)}
    if shape is None:
        return {"description": "Done; there is no body."}
    schema = answers.of(shape)
    if route.media == EVENTS:
        about = "Server-sent events; the data of each is one JSON object."
        content: Schema = {
            "schema": {"type": "string"},
            "x-event-schema": schema,
            "x-native-event-schema": answers.native_event(),
        }
        return {"description": about, "content": {EVENTS: content}}
    return {"description": "Done.", "content": {route.media: {"schema": schema}}}


def _errors(route: Route) -> Schema:
    """Return the answers that report a failure: one for each status, with its codes."""
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    by_status: dict[str, list[str]] = {}
    for code in route.codes:
        by_status.setdefault(str(route.error_status(code)), []).append(f"`{code}`")
    found: Schema = {
        status: {"description": ", ".join(codes), "content": content}
        for status, codes in by_status.items()
    }
    about = "Refused before any route saw it, or failed in here."
    return {**found, "default": {"description": about, "content": content}}


# ── The docs page ───────────────────────────────────────────────────────────────────────────────

_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-family: ui-monospace, monospace; font-size: .9em }
details { border-bottom: 1px solid #8884; padding: .4rem 0 }
summary { cursor: pointer }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0 }
th { font-weight: normal; opacity: .7 }
.method { display: inline-block; width: 4.5rem; font-weight: bold }
.note { opacity: .7 }
"""


def docs_page(document: Schema) -> str:
    """Return an OpenAPI *document* as a page for people."""
    return "".join(_page(document))


def _page(document: Schema) -> Iterator[str]:
    info = document["info"]
    yield "<!doctype html>\n<html lang=en><meta charset=utf-8>"
    yield "<meta name=viewport content='width=device-width'>"
    yield f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>"
    yield f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
    yield f"<p>{_prose(info['description'])}</p>"
    yield "<p>For programs: <a href=/v1/openapi.json><code>/v1/openapi.json</code></a></p>\n"
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>\n"
        for method, path, operation in operations:
            if tag["name"] in operation["tags"]:
                yield from _shown_operation(method, path, operation)
    yield "<h2>Shapes</h2>\n"
    for name, schema in document["components"]["schemas"].items():
        yield from _shape(name, schema)


def _shown_operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"<details id={escape(operation['operationId'])}>"
    yield f"<summary><code><span class=method>{escape(method.upper())}</span> {escape(path)}</code>"
    yield f" <span class=note>{_prose(operation['summary'])}</span></summary>"
    yield f"<p class=note>State: {escape(operation['x-state'])}.</p>"
    rows = [
        (f"{each['in']} {each['name']}", f"{_named(each['schema'])}: {_prose(each['description'])}")
        for each in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        rows.append(("body", _content(operation["requestBody"])))
    for status, response in operation["responses"].items():
        rows.append((status, f"{_prose(response['description'])} {_content(response)}"))
    yield _html_table(rows)
    yield "</details>\n"


def _content(holder: Schema) -> str:
    """Return the shapes of a body or an answer; events of a stream have theirs beside it."""
    beside = ("x-event-schema", "x-native-event-schema")
    return ", ".join(
        _named(schema)
        for media in holder.get("content", {}).values()
        for schema in [media[key] for key in beside if key in media] or [media["schema"]]
    )


def _shape(name: str, schema: Schema) -> Iterator[str]:
    yield f"<details id={escape(name)}><summary><code>{escape(name)}</code>"
    yield f" <span class=note>{_prose(schema.get('description', ''))}</span></summary>"
    required = schema.get("required", ())
    if "properties" in schema:
        yield _html_table(
            (key, _named(each) + ("" if key in required else " <span class=note>optional</span>"))
            for key, each in schema["properties"].items()
        )
    else:
        yield f"<p>{_named(schema)}</p>"
    yield "</details>\n"


def _named(schema: Schema) -> str:
    """Return a schema in a few words, with links to the shapes it is made of."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href=#{name}><code>{name}</code></a>"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " or ".join(_named(each) for each in schema[key])
    if "enum" in schema or "const" in schema:
        return ", ".join(_value(each) for each in schema.get("enum", [schema.get("const")]))
    if "items" in schema:
        return f"list of {_named(schema['items'])}"
    if "properties" in schema:
        members = (f"{escape(key)}: {_named(each)}" for key, each in schema["properties"].items())
        return f"{{{', '.join(members)}}}"
    if "additionalProperties" in schema:
        return f"object of {_named(schema['additionalProperties'])}"
    kind = schema.get("format") or schema.get("contentEncoding") or schema.get("type", "anything")
    return escape(kind)


def _value(value: Json) -> str:
    return f"<code>{escape(str(value))}</code>" if value != "" else "nothing"


def _html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns: plain text, and HTML."""
    body = "".join(f"<tr><th><code>{escape(head)}</code><td>{told}</tr>" for head, told in rows)
    return f"<table>{body}</table>"


def _prose(text: str) -> str:
    """Return text as HTML; what stands in backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


# ── The coverage page ───────────────────────────────────────────────────────────────────────────

_INTRODUCTION: Final = """\
# What of the wire is served

Every route of the `/v1` interface is there and has its exact shape. This page says which of them do
their work, and which still answer with a value that clients understand but that says nothing: an
empty one, or a fixed one. It ends with the items of the contract that are not built. It is printed
by `python -m crush_trio.server.openapi`; a test fails when the two differ.
"""

POSTPONED: Final = {
    "H9": "a shell of our own with a `jq`; commands are run by the system's",
    "H agentic_fetch, sourcegraph, web_fetch, web_search": "not offered to models",
    "I.2": "Bedrock, Vertex and hyper; OAuth and AWS sign-in; finding out models; downloading a catalogue",
    "I7": "built-in skills; there are none, and `view` knows no `crush:`. The rest of the rule holds",
    "I.4 MCP": "logging in by OAuth (a header or a token can be configured), channels",
}
"""The items of D to I that are not built, by item or by row of its table, and what there is instead."""


def coverage_markdown() -> str:
    """Return `docs/wire-coverage.md`."""
    wire = [route for route in ROUTES if not route.extension]
    done = sum(route.state == REAL for route in wire)
    total = f"{done} of {len(wire)} routes are real.\n"
    tables = [_table(name, group) for name, group in _groups().items()]
    return "\n".join([_INTRODUCTION, total, *tables, _postponed()])


def _table(name: str, group: Iterable[Route]) -> str:
    rows = [f"| {route.method} `{route.path}` | {route.state} |\n" for route in group]
    return "".join([f"## {name}\n\n| Route | State |\n|---|---|\n", *rows])


def _postponed() -> str:
    rows = [f"| {items} | {what} |\n" for items, what in POSTPONED.items()]
    return "".join(["## Not built yet\n\n| Items | What |\n|---|---|\n", *rows])


if __name__ == "__main__":
    asked = sys.argv[1:] == ["events"]
    events = json.dumps(event_schema(), indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(events if asked else coverage_markdown())
