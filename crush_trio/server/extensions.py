"""The part of the catalogue that is ours: routes that clients of the Go program do not know."""

from typing import Final

from crush_trio.server.routing import (
    HTML,
    METRICS,
    RECEIPT,
    STORE_ERRORS,
    WORKSPACE,
    Query,
    Route,
    under,
)
from crush_trio.wire.asks import Grant, PermissionRequest, QuestionRequest
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.runs import QueueEdit, QueueItem, ReceiptView, RunView, TaskTree
from crush_trio.wire.views import Resolved

EXTENSIONS: Final = (
    *under(
        f"{WORKSPACE}/runs",
        Route(
            "GET",
            "",
            "List the runs, the newest first.",
            tuple[RunView, ...],
            query=(
                Query("session_id", "only of this session"),
                Query("limit", "100, at most 1000"),
            ),
            errors=("bad_request",),
        ),
        Route("GET", "/{rid}", "Show a run.", RunView, errors=("run_not_found",)),
        Route(
            "POST",
            "/{rid}/cancel",
            "Cancel one run.",
            ReceiptView,
            query=(RECEIPT,),
            errors=("bad_request", "run_not_found"),
            answer_optional=True,
        ),
        errors=STORE_ERRORS,
    ),
    *under(
        f"{WORKSPACE}/agent/sessions/{{sid}}/queue",
        Route("GET", "", "List the runs that wait.", tuple[QueueItem, ...]),
        Route(
            "PATCH",
            "/{rid}",
            "Change the text or the place of a run that waits.",
            tuple[QueueItem, ...],
            QueueEdit,
            errors=(
                *("prompt_empty", "prompt_too_long", "run_not_found", "run_not_queued"),
                *STORE_ERRORS,
            ),
        ),
        Route("DELETE", "/{rid}", "Cancel it.", errors=("run_not_found", "run_not_queued")),
    ),
    *under(
        WORKSPACE,
        Route("GET", "/permissions", "List what waits for a yes.", tuple[PermissionRequest, ...]),
        Route("GET", "/permissions/grants", "List what is allowed.", tuple[Grant, ...]),
        Route("DELETE", "/permissions/grants/{gid}", "Allow it no longer.", Resolved),
        Route("GET", "/questions", "List the questions that wait.", tuple[QuestionRequest, ...]),
    ),
    Route("GET", f"{WORKSPACE}/tasks", "Show who does what, and waits on what.", TaskTree),
    Route("GET", "/v1/metrics", "Numbers about the server, for Prometheus.", str, media=METRICS),
    Route("GET", "/v1/openapi.json", "This interface as an OpenAPI document.", JsonObject),
    Route("GET", "/v1/crush.schema.json", "The schema of configuration files.", JsonObject),
    Route("GET", "/v1/docs", "Redirect to the page below.", status=308),
    Route("GET", "/v1/docs/", "The same as a page for people.", str, media=HTML),
)
"""Rows as those of the catalogue."""
