"""The queue of the audit: nothing is lost in normal operation, and nothing waits for a broken disk."""

import logging

import pytest
import trio

from crush_trio.audit import log as audit_log
from crush_trio.audit.file import AuditFile
from crush_trio.audit.log import QUEUE_MOST, REFUSED_MOST, AuditLog, AuditUnreadable, open_audit
from crush_trio.audit.record import TEXT_MOST, Action, AuditRecord
from crush_trio.clock import TrioClock
from crush_trio.config.secrets.known import KnownSecrets


def record(action=Action.DENIED, **fields):
    return AuditRecord(action=action, **fields)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def whats(path):
    return [each.what for each in AuditFile(path).read(0, 10**6)]


@pytest.mark.real_clock
async def test_what_was_noted_is_on_the_disk_after_a_flush_and_in_order(path):
    async with open_audit(path, TrioClock(epoch=86400)) as audit:
        for number in range(5):
            audit.note(record(what=str(number)))
        assert audit.waiting == 5, "noting does not write"
        await audit.flush()
        assert whats(path) == ["0", "1", "2", "3", "4"]
        assert (audit.written, audit.waiting) == (5, 0)
        [first, *_] = await audit.read(0, 10)
        assert first.time.startswith("1970-01-")


async def test_leaving_writes_what_is_queued_even_if_it_was_cancelled(path):
    with trio.CancelScope() as scope:
        async with open_audit(path) as audit:
            audit.note(record(Action.SENT, what="the last"))
            scope.cancel()
            await trio.sleep_forever()
    assert whats(path) == ["the last"]


async def test_without_a_file_nothing_is_recorded():
    async with open_audit(None) as audit:
        audit.note(record())
        await audit.flush()
        assert (audit.waiting, await audit.read(None, 10)) == (0, [])


async def test_a_directory_that_cannot_be_written_is_told_once_and_loses_nothing(path, caplog):
    path.mkdir()
    caplog.set_level(logging.INFO, "crush_trio.audit.log")
    audit = AuditLog(AuditFile(path))
    for number in range(3):
        audit.note(record(what=str(number)))
        await audit.write_queue()
    assert audit.problem == "Is a directory"
    assert [each.message for each in caplog.records] == ["audit.failed"]
    path.rmdir()
    await audit.write_queue()
    assert (audit.problem, audit.lost) == ("", 0)
    assert [each.message for each in caplog.records] == ["audit.failed", "audit.recovered"]
    assert whats(path) == ["0", "1", "2"]


async def test_a_file_that_cannot_be_read_is_an_error_with_its_reason(path):
    path.with_name("audit.jsonl.1").symlink_to("audit.jsonl.1")
    with pytest.raises(AuditUnreadable, match=r"audit\.jsonl: Too many levels of symbolic links"):
        await AuditLog(AuditFile(path)).read(None, 1)


async def test_the_writer_tries_again_until_the_disk_is_back(path, monkeypatch):
    real, tries, done = audit_log._append, [], trio.Event()

    def failing_twice(file, batch):
        tries.append([each.what for _, each, _ in batch])
        if len(tries) < 3:
            raise OSError(5, "Input/output error")
        trio.from_thread.run_sync(done.set)
        return real(file, batch)

    monkeypatch.setattr(audit_log, "_append", failing_twice)
    async with open_audit(path) as audit:
        audit.note(record(what="patient"))
        await done.wait()
    assert tries == [["patient"]] * 3
    assert whats(path) == ["patient"]


@pytest.mark.heavy
async def test_past_the_bound_records_are_counted_and_the_number_is_recorded(path):
    audit = AuditLog(AuditFile(path))
    for _ in range(QUEUE_MOST + 7):
        audit.note(record())
    assert (audit.waiting, audit.lost) == (QUEUE_MOST + 1, 7)
    await audit.write_queue()
    first, second = AuditFile(path).read(0, 2)
    assert (first.action, first.what) == (Action.RECORDS_LOST, "7 records could not be written")
    assert second.action is Action.DENIED
    audit.note(record())
    await audit.write_queue()
    assert AuditFile(path).read(None, 1)[0].action is Action.DENIED, "and not told twice"


async def test_a_part_that_fitted_is_not_written_again(path, monkeypatch):
    real, left = audit_log._append, [2]

    def small(file, batch):
        return real(file, batch[: left.pop()] if left else batch)

    monkeypatch.setattr(audit_log, "_append", small)
    audit = AuditLog(AuditFile(path))
    for number in range(4):
        audit.note(record(what=str(number)))
    await audit.write_queue()
    assert audit.problem == "no space left on the device"
    await audit.write_queue()
    assert whats(path) == ["0", "1", "2", "3"]


async def test_a_flood_of_refusals_does_not_push_the_rest_out(path):
    audit = AuditLog(AuditFile(path))
    for _ in range(10 * REFUSED_MOST):
        audit.note(record(Action.REFUSED))
    assert audit.waiting == REFUSED_MOST
    audit.note(record())
    assert audit.waiting == REFUSED_MOST + 1
    await trio.sleep(61)
    audit.note(record(Action.REFUSED))
    assert audit.waiting == REFUSED_MOST + 2


async def test_text_is_short_on_one_line_and_without_secrets(path):
    audit = AuditLog(AuditFile(path))
    audit.note(record(what="curl -H 'Authorization: Bearer abcdefghijklmnop' \n http://x"))
    audit.note(record(what="API_KEY=hunter2-hunter2 make"))
    audit.note(record(what="x" * 10_000, directory="/a\udcff"))
    await audit.write_queue()
    first, second, third = AuditFile(path).read(0, 3)
    assert "abcdefghijklmnop" not in first.what
    assert "\n" not in first.what
    assert second.what == "API_KEY=[redacted] make"
    assert (len(third.what), third.directory) == (TEXT_MOST, "/a\\udcff")


async def test_what_the_workspace_knows_to_be_secret_is_hidden_in_every_text(path):
    known = KnownSecrets()
    known.learn(("correct-horse-7",))
    audit = AuditLog(AuditFile(path))
    texts = {"what": "./login correct-horse-7", "directory": "/w/correct-horse-7"}
    audit.note(record(**texts), known.redact)
    await audit.write_queue()
    [found] = AuditFile(path).read(0, 1)
    assert (found.what, found.directory) == ("./login [redacted]", "/w/[redacted]")
