"""Routes that describe the others: the OpenAPI document, and a page made from it.

The page is plain HTML, whole in itself: no script, nothing to fetch, nothing that the document does
not say. Both are made once in a process, when somebody asks.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from typing import Final

from quart import Blueprint, Response

from crush_trio.config.checks import file_schema
from crush_trio.server.openapi import openapi_document
from crush_trio.server.routing import HTML, JSON
from crush_trio.server.server import Site
from crush_trio.wire.codec import encode
from crush_trio.wire.fields import Json
from crush_trio.wire.schema import Schema

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

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("docs", __name__)

    @group.get("/v1/openapi.json")
    def openapi(site: Site) -> Response:
        return Response(_made(site.version.version)[0], 200, content_type=JSON)

    @group.get("/v1/crush.schema.json")
    def schema(site: Site) -> Response:
        return Response(_schema(), 200, content_type=JSON)

    @group.get("/v1/docs")
    def moved(site: Site) -> Response:
        return Response("", 308, {"Location": "/v1/docs/"})

    @group.get("/v1/docs/")
    def docs(site: Site) -> Response:
        return Response(_made(site.version.version)[1], 200, _HEADERS, content_type=HTML)

    return group


@cache
def _schema() -> bytes:
    return encode(file_schema())


@cache
def _made(version: str) -> tuple[bytes, str]:
    document = openapi_document(version)
    return encode(document), docs_page(document)


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
                yield from _operation(method, path, operation)
    yield "<h2>Shapes</h2>\n"
    for name, schema in document["components"]["schemas"].items():
        yield from _shape(name, schema)


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"<details id={escape(operation['operationId'])}>"
    yield f"<summary><code><span class=method>{escape(method.upper())}</span> {escape(path)}</code>"
    yield f" <span class=note>{_prose(operation['summary'])}</span></summary>"
    yield f"<p class=note>State: {escape(operation['x-state'])}.</p>"
    rows = [
        (f"{each['in']} {each['name']}", _prose(each.get("description", "")))
        for each in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        rows.append(("body", _content(operation["requestBody"])))
    for status, response in operation["responses"].items():
        rows.append((status, f"{_prose(response['description'])} {_content(response)}"))
    yield _table(rows)
    yield "</details>\n"


def _content(holder: Schema) -> str:
    """Return the shapes of a body or an answer; events of a stream have theirs beside it."""
    return ", ".join(
        _named(media.get("x-event-schema", media["schema"]))
        for media in holder.get("content", {}).values()
    )


def _shape(name: str, schema: Schema) -> Iterator[str]:
    yield f"<details id={escape(name)}><summary><code>{escape(name)}</code>"
    yield f" <span class=note>{_prose(schema.get('description', ''))}</span></summary>"
    required = schema.get("required", ())
    if "properties" in schema:
        yield _table(
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


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns: plain text, and HTML."""
    body = "".join(f"<tr><th><code>{escape(head)}</code><td>{told}</tr>" for head, told in rows)
    return f"<table>{body}</table>"


def _prose(text: str) -> str:
    """Return text as HTML; what stands in backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
