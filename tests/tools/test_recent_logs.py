"""What the process logged last: bounded, without secrets, and nobody else's."""

import logging

import pytest

from crush_trio.log_context import logged_for
from crush_trio.tools.recent_logs import MAX_LINE_LENGTH, RecentLogs


@pytest.fixture
def logger(request):
    """Return a logger of this test's own, and forget its handlers afterwards."""
    logger = logging.getLogger(f"test.{request.node.name}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    with logged_for("w1"):
        yield logger
    logger.handlers.clear()


def attached(logger, **bounds):
    logs = RecentLogs(**bounds)
    logger.addHandler(logs)
    return logs


def messages(logs, workspace_id="w1", count=100):
    """Return the messages of a workspace, without its id."""
    lines = (line.split(" ", 3)[3] for line in logs.tail(count, workspace_id=workspace_id))
    return [line.replace(f" workspace_id='{workspace_id}'", "") for line in lines]


def test_record_is_one_line_with_its_fields(logger):
    logs = attached(logger)
    logger.info("claim.expired", extra={"client_id": "c", "at": 3})
    logger.warning("two\nlines %s", "x")
    first, second = logs.tail(9, workspace_id="w1")
    assert first.endswith(f" INFO {logger.name} claim.expired at=3 client_id='c' workspace_id='w1'")
    assert second.endswith(rf" WARNING {logger.name} two\nlines x workspace_id='w1'")
    assert first.index("T") == 10


def test_failure_is_part_of_its_line(logger):
    logs = attached(logger)
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("run.failed")
    [line] = logs.tail(9, workspace_id="w1")
    assert "\n" not in line
    assert "ValueError: broken" in line


def test_last_lines_are_kept(logger):
    logs = attached(logger, records=3)
    for number in range(5):
        logger.info("%d", number)
    assert messages(logs) == ["2", "3", "4"]
    assert messages(logs, count=2) == ["3", "4"]


def test_bytes_are_bounded_too(logger):
    logs = attached(logger, size=1000)
    for number in range(100):
        logger.info("%s%d", "x" * 300, number)
    assert [message[300:] for message in messages(logs)] == ["98", "99"]


def test_lines_that_are_too_long_are_skipped(logger):
    logs = attached(logger)
    logger.info("x" * (MAX_LINE_LENGTH + 1))
    logger.info("short")
    assert messages(logs) == ["short"]


def test_other_workspaces_and_the_process_itself_stay_unseen():
    logger = logging.getLogger("test.unseen")
    logger.setLevel(logging.DEBUG)
    logs = attached(logger)
    try:
        logger.info("mine", extra={"workspace_id": "w1"})
        logger.info("theirs", extra={"workspace_id": "w2"})
        with logged_for("w2"):
            logger.info("theirs too")
        logger.info("of the whole process")
    finally:
        logger.handlers.clear()
    assert messages(logs, "w1") == ["mine"]
    assert messages(logs, "w2") == ["theirs", "theirs too"]


def test_secrets_are_taken_out(logger):
    logs = attached(logger)
    logger.info("asked", extra={"api_key": "abc", "url": "http://u:p@h/"})
    logger.info("token is known-to-us")
    text = "\n".join(logs.tail(9, workspace_id="w1", secrets=["known-to-us"]))
    assert "abc" not in text
    assert "u:p" not in text
    assert "known-to-us" not in text


def test_record_that_cannot_be_written_hurts_nobody(logger, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logs = attached(logger)
    logger.info("%d", "not a number")
    logger.info("next")
    assert messages(logs) == ["next"]
