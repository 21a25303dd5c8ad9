"""What the server refuses comes back as the error it was, and everything else as one that says so."""

import pytest

from crush_trio import errors
from crush_trio.client.http import (
    KNOWN,
    AnswerLost,
    ApiError,
    RunNotCompleted,
    ServerUnreachable,
    passes,
    refusal,
)
from crush_trio.errors import CrushError
from crush_trio.server.cluster.errors import ForwardLost, OwnerUnreachable
from crush_trio.server.guard import Unauthorized
from crush_trio.server.status import STATUS, error_body, status_of
from crush_trio.store.errors import StoreBusy

LEAVES = sorted(KNOWN.values(), key=lambda cls: cls.code)


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("detail", ["", "of some kind", "with: a colon"])
def test_an_error_of_the_library_survives_the_way_over_the_wire(cls, detail):
    sent = cls(detail)
    back = refusal(status_of(sent), error_body(sent))
    assert type(back) is cls
    assert (back.code, back.detail, str(back)) == (sent.code, sent.detail, str(sent))


def test_every_error_of_the_library_is_known():
    defined = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, CrushError) and "code" in vars(cls)
    ]
    assert set(KNOWN.values()) == set(defined) - {CrushError}


@pytest.mark.parametrize("sent", [Unauthorized(), StoreBusy("for now"), CrushError()])
def test_other_refusals_carry_their_code_their_status_and_the_servers_words(sent):
    back = refusal(status_of(sent), error_body(sent))
    assert type(back) is ApiError
    assert (back.code, back.status, str(back)) == (sent.code, STATUS[sent.code], str(sent))


@pytest.mark.parametrize(
    ("sent", "kind"),
    [(ForwardLost(), AnswerLost), (OwnerUnreachable("node 2"), ServerUnreachable)],
)
def test_a_connection_that_broke_between_two_nodes_is_like_one_that_broke_here(sent, kind):
    back = refusal(status_of(sent), error_body(sent))
    assert type(back) is kind
    assert back.detail == str(sent)


def test_a_refusal_that_is_no_json_is_told_as_it_is():
    back = refusal(404, b"404 page not found\n")
    assert (back.code, back.status, str(back)) == ("http_404", 404, "404 page not found")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (502, b"<html><h1>502 Bad Gateway</h1>"),
        (504, b""),
    ],
)
def test_an_answer_that_a_proxy_has_lost_is_a_lost_answer(status, body):
    assert isinstance(refusal(status, body), AnswerLost)
    assert isinstance(refusal(500, body), ApiError)


def test_a_refusal_without_a_word_is_told_by_its_status():
    assert str(refusal(500, b"")) == "HTTP status 500"


def test_one_refusal_does_not_change_the_next():
    refusal(401, error_body(Unauthorized()))
    assert ApiError().code == "api_error"


@pytest.mark.parametrize(
    ("error", "later"),
    [
        (ServerUnreachable(), True),
        (AnswerLost(), True),
        (errors.ServerShuttingDown(), True),
        (errors.WorkspaceClosing(), True),
        (ApiError("x", status=503), True),
        (ApiError("x", status=401), False),
        (errors.ClientRetired(), False),
        (errors.RunNotFound(), False),
    ],
)
def test_only_what_may_get_better_is_tried_again(error, later):
    assert passes(error) is later


def test_whoever_wants_the_text_of_a_run_can_look_at_the_run():
    assert RunNotCompleted("cancelled").run is None
