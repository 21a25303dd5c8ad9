"""Who clients are, and how long a goodbye is remembered."""

import pytest

from crush_trio.backend.claims import RetiredClients, client_id_of, version_notice
from crush_trio.errors import ClientIdInvalid
from tests.backend.hosts import A, B, C

CANONICAL = "6e3c1c1e-0a1b-4c2d-8e3f-0123456789ab"


@pytest.mark.item("E1", "E13")
@pytest.mark.parametrize(
    "text",
    [
        CANONICAL,
        CANONICAL.upper(),
        CANONICAL.replace("-", ""),
        "{" + CANONICAL + "}",
        "urn:uuid:" + CANONICAL,
        "URN:UUID:" + CANONICAL,
    ],
)
def test_one_uuid_is_one_client_however_it_is_spelt(text):
    assert client_id_of(text) == CANONICAL


@pytest.mark.item("E1", "E13")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "me",
        CANONICAL + " ",
        CANONICAL[:-1],
        CANONICAL + "0",
        CANONICAL.replace("6", "g"),
        "{" + CANONICAL,
        CANONICAL + "}",
        "urn:uuid:" + CANONICAL.replace("-", ""),
        "6e3c1c1e0a1b-4c2d-8e3f-0123456789ab",
        "٦" + CANONICAL[1:],
        CANONICAL + "\n",
    ],
)
def test_anything_else_is_no_client_id(text):
    with pytest.raises(ClientIdInvalid):
        client_id_of(text)


@pytest.mark.item("E9", "L41")
def test_a_difference_in_version_is_worth_a_notice():
    assert version_notice("v1", "v1") == ""
    assert version_notice("", "v1") == version_notice("v1", "") == ""
    assert "v1" in (notice := version_notice("v1", "v2"))
    assert "v2" in notice


@pytest.mark.item("E18", "L23")
def test_a_goodbye_is_remembered_for_its_time_and_then_forgotten():
    retired = RetiredClients(100.0)
    retired.add(A, 0.0)
    retired.add(B, 50.0)
    assert retired.has(A, 99.9)
    assert not retired.has(A, 100.0)
    assert retired.has(B, 149.9)
    assert not retired.has(C, 0.0)


@pytest.mark.item("L23")
def test_what_is_forgotten_takes_no_memory():
    retired = RetiredClients(100.0)
    for second in range(1000):
        retired.add(f"client {second}", float(second))
    assert len(retired) == 100


def test_saying_goodbye_again_starts_the_time_anew():
    retired = RetiredClients(100.0)
    retired.add(A, 0.0)
    retired.add(B, 10.0)
    retired.add(A, 50.0)
    assert retired.has(A, 149.0)
    assert not retired.has(B, 149.0)
