"""Every error has a status, and an answer that programs and people can read."""

import importlib
import pkgutil
from http import HTTPStatus

import orjson
import pytest

import crush_trio
from crush_trio import errors
from crush_trio.client.http import refusal
from crush_trio.errors import CrushError
from crush_trio.server.bodies import BodyTooLarge
from crush_trio.server.guard import HostForbidden, Unauthorized
from crush_trio.server.status import STATUS, error_body, error_headers, status_of
from crush_trio.store.errors import DiskFull, StoreUnavailable


def load_every_module():
    """Import the whole package: an error may be defined anywhere."""
    for module in pkgutil.walk_packages(crush_trio.__path__, "crush_trio."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def leaves(cls=CrushError):
    below = [sub for sub in cls.__subclasses__() if sub.__module__.startswith("crush_trio.")]
    return {leaf for sub in below for leaf in leaves(sub)} if below else {cls}


def is_ours(leaf):
    """Whether a server can raise it; clients, copies, handles of runs and `net` raise theirs."""
    return not leaf.__module__.startswith(
        (
            "crush_trio.client.",
            "crush_trio.cli.",
            "crush_trio.store.copies.",
            "crush_trio.net.errors",
            "crush_trio.testing.",
            "crush_trio.backend.run_handle",
        )
    )


load_every_module()
LEAVES = sorted(filter(is_ours, leaves()), key=lambda leaf: leaf.__name__)


def name_of(cls):
    return cls.__name__


@pytest.mark.parametrize("leaf", LEAVES, ids=name_of)
def test_every_error_has_a_status(leaf):
    assert leaf.code in STATUS, f"say in STATUS what {leaf.__name__} is answered with"
    assert 400 <= STATUS[leaf.code] <= 599


def test_the_table_knows_no_error_that_does_not_exist():
    assert set(STATUS) == {leaf.code for leaf in LEAVES} | {CrushError.code}


GROUPS = [
    (errors.BadRequest, range(400, 500), {"http_version_unsupported"}),
    (errors.NotFound, [404], set()),
    (errors.Conflict, [409], set()),
    (errors.Unavailable, [503], {"disk_full", "no_room_for_prompt", "too_many_connections"}),
]


@pytest.mark.parametrize(("group", "allowed", "exceptions"), GROUPS)
def test_the_errors_of_a_group_have_the_status_of_the_group(group, allowed, exceptions):
    statuses = {leaf.code: status_of(leaf()) for leaf in LEAVES if issubclass(leaf, group)}
    assert statuses
    others = {code for code, status in statuses.items() if status not in allowed}
    assert others == exceptions


# wire.md §1, word for word; what the Go program answers with 500 is below.
WIRE = [
    ("failed to decode request", 400),
    ("client_id is required", 400),
    ("client_id is not a valid UUID", 400),
    ("invalid client_id", 400),
    ("path is required", 400),
    ("unknown command", 400),
    ("invalid permission action", 400),
    ("name is required", 400),
    ("workspace not found", 404),
    ("LSP client not found", 404),
    ("client not attached", 409),
    ("workspace closing", 409),
    ("server is hosting live workspaces", 409),
    ("client has been retired", 409),
    ("server is shutting down", 503),
]
ORDINARY = [
    ("prompt is empty", 400),
    ("session id is missing", 400),
    ("session not found", 404),
    ("skill not found", 404),
    ("session is currently processing another request", 409),
    ("channel opt-in mismatch", 409),
]


@pytest.mark.item("E.6", "L34")
@pytest.mark.parametrize(("text", "status"), [*WIRE, *ORDINARY])
def test_a_text_of_the_wire_has_its_status(text, status):
    [leaf] = [leaf for leaf in LEAVES if leaf.message == text]
    assert status_of(leaf()) == status
    assert orjson.loads(error_body(leaf())) == {"message": text, "code": leaf.code}


@pytest.mark.parametrize(
    ("error", "status"),
    [(BodyTooLarge(), 413), (HostForbidden(), 403), (Unauthorized(), 401), (DiskFull(), 507)],
)
def test_errors_of_this_layer_and_of_the_store_have_a_status(error, status):
    assert status_of(error) == status


def test_a_status_is_a_plain_number():
    assert type(status_of(errors.SessionNotFound())) is int


@pytest.mark.parametrize(
    "error", [errors.UnknownCommand, errors.PermissionActionInvalid, errors.LspNotFound]
)
def test_messages_that_clients_compare_have_their_detail_beside_them(error):
    body = {"message": error.message, "code": error.code, "detail": "why"}
    assert orjson.loads(error_body(error("why"))) == body
    assert str(refusal(400, error_body(error("why")))) == f"{error.message}: why"


def test_the_answer_tells_the_detail():
    error = errors.DecodeError("scope: expected an integer, got a string")
    assert orjson.loads(error_body(error)) == {
        "message": "failed to decode request",
        "code": "bad_request",
        "detail": "scope: expected an integer, got a string",
    }


def test_an_unknown_error_of_ours_is_a_server_error_that_keeps_its_words():
    class Novel(CrushError):
        code = "novel"
        message = "nobody thought of this"

    assert status_of(Novel()) == 500
    assert orjson.loads(error_body(Novel("yet"))) == {
        "message": "nobody thought of this: yet",
        "code": "novel",
    }


@pytest.mark.parametrize("error", [KeyError("secret"), StoreUnavailable("x"), BaseException("y")])
def test_whatever_is_not_in_the_table_is_a_server_error(error):
    assert status_of(error) == 500


def test_the_text_of_a_foreign_exception_is_not_shown():
    body = error_body(RuntimeError("password=hunter2 in a path"))
    assert body == b'{"message":"internal server error","code":"internal_error"}'


def test_a_text_that_is_not_unicode_can_still_be_answered():
    body = orjson.loads(error_body(errors.PathMissing("bad\udcff name")))
    assert body["message"].startswith("path is required: bad")


def test_a_401_asks_for_a_token_a_429_for_patience_and_nothing_is_permitted_to_other_origins():
    hints = {
        HTTPStatus.UNAUTHORIZED: {b"www-authenticate": b"Bearer"},
        HTTPStatus.TOO_MANY_REQUESTS: {b"retry-after": b"1"},
    }
    for leaf in LEAVES:
        headers = dict(error_headers(leaf()))
        assert headers.pop(b"content-type") == b"application/json"
        assert headers == hints.get(status_of(leaf()), {})
