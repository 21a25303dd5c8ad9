"""The HTTP status and the body of each error.

The table is by code, because the code is what an error promises to programs. It is complete: a test
walks the error classes and fails for one without a status. Any other exception is answered with a fixed
text, because its own text was not written for clients.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from crush_trio.errors import CrushError
from crush_trio.log_context import Hide
from crush_trio.plain_json import dump

STATUS: Final[Mapping[str, int]] = {
    # The request is wrong. The Go program calls some of these a server error (L34).
    "bad_request": HTTPStatus.BAD_REQUEST,
    "client_id_invalid": HTTPStatus.BAD_REQUEST,
    "client_id_malformed": HTTPStatus.BAD_REQUEST,
    "client_id_missing": HTTPStatus.BAD_REQUEST,
    "config_invalid": HTTPStatus.BAD_REQUEST,
    "id_invalid": HTTPStatus.BAD_REQUEST,
    "name_missing": HTTPStatus.BAD_REQUEST,
    "not_a_crush_database": HTTPStatus.BAD_REQUEST,
    "path_invalid": HTTPStatus.BAD_REQUEST,
    "path_missing": HTTPStatus.BAD_REQUEST,
    "permission_action_invalid": HTTPStatus.BAD_REQUEST,
    "prompt_empty": HTTPStatus.BAD_REQUEST,
    "public_url_invalid": HTTPStatus.BAD_REQUEST,
    "provider_key_invalid": HTTPStatus.BAD_REQUEST,
    "rule_not_possible": HTTPStatus.BAD_REQUEST,
    "session_missing": HTTPStatus.BAD_REQUEST,
    "title_too_long": HTTPStatus.BAD_REQUEST,
    "token_name_invalid": HTTPStatus.BAD_REQUEST,
    "unknown_command": HTTPStatus.BAD_REQUEST,
    "attachment_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "body_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "prompt_too_long": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "http_version_unsupported": HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
    "request_too_slow": HTTPStatus.REQUEST_TIMEOUT,
    # Not 503: clients take that for a server that shuts down.
    "too_many_connections": HTTPStatus.TOO_MANY_REQUESTS,
    # The request is not allowed.
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "csrf": HTTPStatus.FORBIDDEN,
    "forward_forbidden": HTTPStatus.FORBIDDEN,
    "host_forbidden": HTTPStatus.FORBIDDEN,
    "origin_forbidden": HTTPStatus.FORBIDDEN,
    "own_process": HTTPStatus.FORBIDDEN,
    "peer_forbidden": HTTPStatus.FORBIDDEN,
    "right_missing": HTTPStatus.FORBIDDEN,
    # Not found. For a workspace this tells the client to create it again.
    "lsp_not_found": HTTPStatus.NOT_FOUND,
    "mcp_not_found": HTTPStatus.NOT_FOUND,
    "message_not_found": HTTPStatus.NOT_FOUND,
    "not_configured": HTTPStatus.NOT_FOUND,
    "run_not_found": HTTPStatus.NOT_FOUND,
    "session_not_found": HTTPStatus.NOT_FOUND,
    "skill_not_found": HTTPStatus.NOT_FOUND,
    "token_not_found": HTTPStatus.NOT_FOUND,
    "workspace_not_found": HTTPStatus.NOT_FOUND,
    # Not in this state.
    "channel_mismatch": HTTPStatus.CONFLICT,
    "client_not_attached": HTTPStatus.CONFLICT,
    "client_retired": HTTPStatus.CONFLICT,
    "message_growing": HTTPStatus.CONFLICT,
    "not_recorded": HTTPStatus.CONFLICT,
    "rule_elsewhere": HTTPStatus.CONFLICT,
    "run_id_taken": HTTPStatus.CONFLICT,
    "run_not_queued": HTTPStatus.CONFLICT,
    "server_not_idle": HTTPStatus.CONFLICT,
    "server_stays": HTTPStatus.CONFLICT,
    "session_busy": HTTPStatus.CONFLICT,
    "token_name_taken": HTTPStatus.CONFLICT,
    "too_many_commands": HTTPStatus.CONFLICT,
    "workspace_closing": HTTPStatus.CONFLICT,
    # For another node of the cluster, which asks again.
    "not_owner": HTTPStatus.MISDIRECTED_REQUEST,
    # Not now: later, elsewhere, or once the store is repaired.
    "acceptance_not_stored": HTTPStatus.SERVICE_UNAVAILABLE,
    "audit_unreadable": HTTPStatus.SERVICE_UNAVAILABLE,
    "config_locked": HTTPStatus.SERVICE_UNAVAILABLE,
    "config_not_expanded": HTTPStatus.SERVICE_UNAVAILABLE,
    "config_not_written": HTTPStatus.SERVICE_UNAVAILABLE,
    "not_ready": HTTPStatus.SERVICE_UNAVAILABLE,
    "server_shutting_down": HTTPStatus.SERVICE_UNAVAILABLE,
    "data_directory_lost": HTTPStatus.SERVICE_UNAVAILABLE,
    "disk_failed": HTTPStatus.SERVICE_UNAVAILABLE,
    "lease_lost": HTTPStatus.SERVICE_UNAVAILABLE,
    "migration_failed": HTTPStatus.SERVICE_UNAVAILABLE,
    "owned_elsewhere": HTTPStatus.SERVICE_UNAVAILABLE,
    "owner_unreachable": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_corrupt": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_failed": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_file_foreign": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_locked": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_read_only": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_too_new": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_slow": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_unreachable": HTTPStatus.SERVICE_UNAVAILABLE,
    "store_unsuitable": HTTPStatus.SERVICE_UNAVAILABLE,
    "workspace_elsewhere": HTTPStatus.SERVICE_UNAVAILABLE,
    "tokens_unusable": HTTPStatus.SERVICE_UNAVAILABLE,
    "disk_full": HTTPStatus.INSUFFICIENT_STORAGE,
    "run_id_stored": HTTPStatus.SERVICE_UNAVAILABLE,
    "no_room_for_prompt": HTTPStatus.INSUFFICIENT_STORAGE,
    # More than a limit allows; the same request may succeed later.
    "queue_full": HTTPStatus.TOO_MANY_REQUESTS,
    "too_many_logins": HTTPStatus.TOO_MANY_REQUESTS,
    "too_many_workspaces": HTTPStatus.TOO_MANY_REQUESTS,
    # A hook of the user is against it.
    "prompt_refused": HTTPStatus.FORBIDDEN,
    # Another server was asked during the request, and its connection broke.
    "another_answered": HTTPStatus.BAD_GATEWAY,
    "forward_lost": HTTPStatus.BAD_GATEWAY,
    # An MCP server was asked during the request, and failed.
    "mcp_failed": HTTPStatus.BAD_GATEWAY,
    # A model was asked during the request, and its provider failed.
    "answer_too_long": HTTPStatus.BAD_GATEWAY,
    "provider_context_full": HTTPStatus.BAD_GATEWAY,
    "provider_garbled": HTTPStatus.BAD_GATEWAY,
    "provider_unreadable": HTTPStatus.BAD_GATEWAY,
    "provider_rate_limited": HTTPStatus.BAD_GATEWAY,
    "provider_refused": HTTPStatus.BAD_GATEWAY,
    "provider_too_slow": HTTPStatus.GATEWAY_TIMEOUT,
    "provider_unauthorized": HTTPStatus.BAD_GATEWAY,
    "provider_unavailable": HTTPStatus.BAD_GATEWAY,
    "provider_unconnectable": HTTPStatus.BAD_GATEWAY,
    "provider_unreachable": HTTPStatus.BAD_GATEWAY,
    "provider_unsupported": HTTPStatus.BAD_GATEWAY,
    "summary_failed": HTTPStatus.BAD_GATEWAY,
    "not_built": HTTPStatus.NOT_IMPLEMENTED,
    # Our own mistakes, and errors that end a server before it can be asked anything.
    "address_exposed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "address_in_use": HTTPStatus.INTERNAL_SERVER_ERROR,
    "socket_exposed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "bad_address": HTTPStatus.INTERNAL_SERVER_ERROR,
    "cancel_swallowed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "advertise_invalid": HTTPStatus.INTERNAL_SERVER_ERROR,
    "lease_ttl_invalid": HTTPStatus.INTERNAL_SERVER_ERROR,
    "cannot_listen": HTTPStatus.INTERNAL_SERVER_ERROR,
    "cluster_token_missing": HTTPStatus.INTERNAL_SERVER_ERROR,
    "internal_error": HTTPStatus.INTERNAL_SERVER_ERROR,
    "lifespan_failed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "limit_invalid": HTTPStatus.INTERNAL_SERVER_ERROR,
    "log_closed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "node_taken": HTTPStatus.INTERNAL_SERVER_ERROR,
    "record_not_stored": HTTPStatus.INTERNAL_SERVER_ERROR,
    "run_reentered": HTTPStatus.INTERNAL_SERVER_ERROR,
    "site_invalid": HTTPStatus.INTERNAL_SERVER_ERROR,
    "store_unknown": HTTPStatus.INTERNAL_SERVER_ERROR,
    "token_unusable": HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The status of every error this project raises, by its code."""

EXACT: Final = frozenset(
    {"bad_request", "lsp_not_found", "permission_action_invalid", "unknown_command"}
)
"""The codes whose message clients of the Go program compare: their detail has a key of its own."""

RETRY_AFTER: Final = 1
"""Seconds after which a client that was refused by a limit may try again."""


def usual_status(code: str) -> int:
    """Return the status of an error; 500 for a code that is not in the table."""
    return int(STATUS.get(code, HTTPStatus.INTERNAL_SERVER_ERROR))


def status_of_create(code: str) -> int:
    """Return the status of an error of a create: 503 for `server_shutting_down` alone.

    Clients of the Go program take a 503 for a server that goes away, remove its socket and start their own.
    So what is wrong with the configuration, the store or the disk is 500, as it is there.
    """
    usual = usual_status(code)
    ours = usual >= HTTPStatus.INTERNAL_SERVER_ERROR or code == "config_invalid"
    return 500 if ours and code != "server_shutting_down" else usual


def code_of(exc: BaseException) -> str:
    """Return the code of *exc*; that of an internal error for any exception that is not ours."""
    return exc.code if isinstance(exc, CrushError) else CrushError.code


def status_of(exc: BaseException) -> int:
    """Return the status to answer *exc* with, on all routes but create."""
    return usual_status(code_of(exc))


def error_body(exc: BaseException, hide: Hide | None = None) -> bytes:
    """Return the body for *exc*: a sentence for people, without what *hide* removes, and a code."""
    known = exc if isinstance(exc, CrushError) else CrushError()
    exact = known.code in EXACT
    message = known.message if exact else str(known)
    detail = known.detail if exact else ""
    if hide is not None:
        message, detail = hide(message), hide(detail)
    # An `ErrorBody`, written without the codec: the HTTP server refuses before that is imported.
    body = {"message": message, "code": known.code}
    return dump({**body, "detail": detail} if detail else body)


def error_headers(exc: BaseException) -> list[tuple[bytes, bytes]]:
    """Return the headers that go with `error_body`.

    None of them allows an origin: a foreign page must not read even a refusal.
    """
    return [(b"content-type", b"application/json"), *hint_headers(exc)]


def hint_headers(exc: BaseException) -> list[tuple[bytes, bytes]]:
    """Return the extra headers of an error: how to authenticate, or when to try again."""
    match status_of(exc):
        case HTTPStatus.UNAUTHORIZED:
            return [(b"www-authenticate", b"Bearer")]
        case HTTPStatus.TOO_MANY_REQUESTS:
            return [(b"retry-after", b"%d" % RETRY_AFTER)]
    return []
