"""A failure is told by its kind and its place, and by nothing that the client sent."""

import pytest

from crush_trio.server.logging import places


def fail(error):
    """Return *error* as it is after it was raised."""
    with pytest.raises(type(error)):
        raise error
    return error


def test_a_failure_is_told_by_kind_and_line_without_its_message():
    [told] = places(fail(ValueError("secret")))
    assert told.startswith("ValueError at ")
    assert told.partition(":")[0].endswith("test_failures.py")
    assert "secret" not in told


def test_a_group_is_told_by_its_members_however_deep():
    group = ExceptionGroup("", [fail(ValueError()), ExceptionGroup("", [fail(KeyError())])])
    assert [told.partition(" ")[0] for told in places(fail(group))] == ["ValueError", "KeyError"]


def test_what_was_made_and_never_raised_is_told_too():
    """It stands in groups that applications make themselves."""
    assert list(places(ExceptionGroup("", [ValueError("secret")]))) == [
        "ValueError at no line: it was not raised"
    ]
