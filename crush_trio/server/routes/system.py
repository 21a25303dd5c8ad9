"""Routes about the server itself (wire.md §3.1), its metrics, and the documents that describe it."""

from functools import cache
from typing import Final

import trio

from crush_trio.audit.record import AuditRecord
from crush_trio.backend.cluster.view import alone
from crush_trio.config.checks import file_schema
from crush_trio.errors import CrushError, DecodeError, ServerShuttingDown
from crush_trio.server.audit_notes import CONTROL, RETIRED
from crush_trio.server.bodies import parse_client_id
from crush_trio.server.hosting.front import NotReady
from crush_trio.server.prometheus import exposition
from crush_trio.server.routing import (
    EXTENSIONS,
    HTML,
    JSON,
    METRICS,
    STORE_ERRORS,
    Call,
    Query,
    Reply,
    Route,
    checked_caller,
    under,
)
from crush_trio.server.status import error_body, error_headers, status_of
from crush_trio.server.tokens import Right
from crush_trio.wire.answers import ErrorBody, Health, Version
from crush_trio.wire.codec import encode
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.requests import ControlRequest
from crush_trio.wire.views import ClusterView

_PAGE_HEADERS: Final = (
    (b"content-type", HTML.encode()),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
)


AUDIT_MOST: Final = 1000
"""The most records of an answer."""

AUDIT_USUAL: Final = 100


def health(call: Call) -> Health | None:
    """Answer that the server is there; the body tells what does not work, and is empty otherwise.

    A stranger is told only that it is there: problems name paths.
    """
    problems = []
    if reason := call.server.audit.problem:
        told = f"the audit cannot be written: {reason}; what is done is kept in memory meanwhile"
        problems.append(ErrorBody(message=told, code="audit_failed"))
    if trouble := _cut_off(call):
        told = f"the leases of this server could not be renewed: {trouble}"
        problems.append(ErrorBody(message=told, code="not_renewed"))
    return Health(problems=tuple(problems)) if problems and call.caller.known else None


def _cut_off(call: Call) -> str | None:
    """Return why this server does not reach the database that it shares; None if it does."""
    return None if call.server.cluster is None else call.server.cluster.node.trouble


def ready(call: Call) -> Reply | None:
    """Answer whether the server should get new clients; 503 while it drains or something fails.

    A reply and not an error, because errors are logged, and this is asked every few seconds.
    """
    if call.server.ending:
        return _not_ready(ServerShuttingDown())
    degraded = any(hosted.degraded is not None for hosted in call.server.workspaces())
    trouble = degraded or _cut_off(call) or call.server.audit.problem
    return _not_ready(NotReady()) if trouble else None


def _not_ready(error: CrushError) -> Reply:
    return Reply(error_body(error), status_of(error), tuple(error_headers(error)))


def version(call: Call) -> Version:
    """Return what is serving."""
    return call.server.version


async def cluster(call: Call) -> ClusterView:
    """Return the servers of the database; a server with a store of its own is the only one."""
    await trio.lowlevel.checkpoint()
    if call.server.cluster is None:
        return alone(call.server.card, draining=call.server.ending)
    return await call.server.cluster.node.view()


def server_config(_call: Call) -> JsonObject:
    """Return the server's configuration, of which there is none to show."""
    return {}


def control(call: Call) -> None:
    """Do what the command in the body says."""
    call.server.backend.control(call.body.command)


async def retire(call: Call) -> None:
    """Drop every claim of a client, which must have come with the caller's token, or the caller is admin.

    All nodes are told: the client may have opened workspaces through any of them.
    """
    call.server.backend.retire(call.own_client(parse_client_id(call.values["client_id"])))
    await trio.lowlevel.checkpoint()
    if call.server.cluster is not None and not call.caller.forwarded:
        peers, target = call.server.cluster.peers, call.scope["path"]
        await peers.ask_all(await checked_caller(call), "DELETE", target)


async def metrics(call: Call) -> Reply:
    """Return the metrics. The guard applies to a scraper as well: it needs the token."""
    await trio.lowlevel.checkpoint()
    for workspace in list(call.server.meters.workspaces):
        await workspace.store.measure()
    body, media = exposition(call.server, call.header(b"accept") or "")
    return Reply(body, headers=((b"content-type", media.encode()),))


async def audit(call: Call) -> tuple[AuditRecord, ...]:
    """Return records of the audit: those after one, or the newest."""
    limit = call.number("limit", AUDIT_MOST) or AUDIT_USUAL
    text = call.query.get("after")
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 16):
        raise DecodeError("after is not the number of a record; give the seq of the last one")
    return tuple(await call.server.audit.read(None if text is None else int(text), limit))


# ── Documents ───────────────────────────────────────────────────────────────────────────────────


def openapi(call: Call) -> Reply:
    """Return the OpenAPI document."""
    return _json(_documents(call.server.version.version)[0])


def config_schema(_call: Call) -> Reply:
    """Return the schema of configuration files."""
    return _json(_config_schema())


def events_schema(_call: Call) -> Reply:
    """Return the schema of the events of the native form."""
    return _json(_events_schema())


def docs_moved(_call: Call) -> Reply:
    """Redirect to the docs page."""
    headers = ((b"content-type", HTML.encode()), (b"location", b"/v1/docs/"))
    return Reply(status=308, headers=headers)


def docs(call: Call) -> Reply:
    """Return the docs page."""
    return Reply(_documents(call.server.version.version)[1], headers=_PAGE_HEADERS)


def _json(body: bytes) -> Reply:
    return Reply(body, headers=((b"content-type", JSON.encode()),))


@cache
def _config_schema() -> bytes:
    return encode(file_schema())


@cache
def _events_schema() -> bytes:
    from crush_trio.server.openapi import event_schema

    return encode(event_schema())


@cache
def _documents(version: str) -> tuple[bytes, bytes]:
    """Return the OpenAPI document and the page made from it; made once, when first asked for."""
    from crush_trio.server.openapi import docs_page, openapi_document

    document = openapi_document(version)
    return encode(document), docs_page(document).encode()


ROUTES: Final = (
    *under(
        "/v1",
        Route(
            "GET",
            "/health",
            "Answer if the server is there.",
            health,
            name="get_health",
            remark=Health,
            direct=True,
            open_to_all=True,
            probe=True,
        ),
        Route(
            "GET",
            "/version",
            "Show the version of the server.",
            version,
            name="get_version",
            answer=Version,
            direct=True,
        ),
        Route(
            "GET",
            "/config",
            "Show the server's configuration, which is empty.",
            server_config,
            name="get_server_config",
            answer=JsonObject,
        ),
        Route(
            "POST",
            "/control",
            "Ask the server to end, which it does if it hosts no workspace.",
            control,
            name="control_server",
            body=ControlRequest,
            errors=("unknown_command", "server_not_idle", "server_stays"),
            audit=CONTROL,
        ),
        Route(
            "DELETE",
            "/clients/{client_id}",
            "Retire a client: drop all its claims, and refuse its later creates.",
            retire,
            name="retire_client",
            errors=("client_id_invalid", "right_missing"),
            right=Right.WATCH,
            audit=RETIRED,
        ),
        group="System",
    ),
    *under(
        "/v1",
        Route(
            "GET",
            "/ready",
            "Answer if the server should get new clients.",
            ready,
            name="get_readiness",
            errors=("not_ready", "server_shutting_down"),
            direct=True,
            open_to_all=True,
            probe=True,
        ),
        Route(
            "GET",
            "/metrics",
            "Show the metrics, for Prometheus.",
            metrics,
            name="get_metrics",
            answer=str,
            media=METRICS,
        ),
        Route(
            "GET",
            "/cluster",
            "List the servers of the database, and the workspaces that each of them runs.",
            cluster,
            name="get_cluster",
            answer=ClusterView,
            errors=STORE_ERRORS,
        ),
        Route(
            "GET",
            "/audit",
            "List who did what: the records after one, or the newest.",
            audit,
            name="list_audit_records",
            answer=tuple[AuditRecord, ...],
            query=(
                Query(
                    "after",
                    "the seq of a record: only later ones, the oldest first",
                    shape=int,
                    least=0,
                ),
                Query(
                    "limit",
                    "how many at most",
                    shape=int,
                    least=1,
                    most=AUDIT_MOST,
                    usual=AUDIT_USUAL,
                ),
            ),
            errors=("bad_request", "audit_unreadable"),
            right=Right.ADMIN,
        ),
        Route(
            "GET",
            "/openapi.json",
            "Show this interface as an OpenAPI document.",
            openapi,
            name="get_openapi_document",
            answer=JsonObject,
        ),
        Route(
            "GET",
            "/crush.schema.json",
            "Show the schema of configuration files.",
            config_schema,
            name="get_config_schema",
            answer=JsonObject,
        ),
        Route(
            "GET",
            "/events.schema.json",
            "Show the schema of the events of the native form.",
            events_schema,
            name="get_event_schema",
            answer=JsonObject,
        ),
        Route(
            "GET",
            "/docs",
            "Redirect to the docs page.",
            docs_moved,
            name="redirect_to_docs",
            status=308,
        ),
        Route(
            "GET",
            "/docs/",
            "Show this interface as a page for people.",
            docs,
            name="get_docs_page",
            answer=str,
            media=HTML,
        ),
        group=EXTENSIONS,
    ),
)
