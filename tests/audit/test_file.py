"""The files of the audit: numbered, rotated, shared by processes, and never anything but our own file."""

import json
import os
import pwd
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from crush_trio.audit.file import AuditFile
from crush_trio.audit.record import Action, AuditRecord, audit_path
from crush_trio.cli.commands import doctor
from crush_trio.server.settings import ServerSettings, warn_without_audit


def sent(number):
    return AuditRecord(action=Action.SENT, what=f"record {number}")


def numbers(records):
    return [record.seq for record in records]


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "crush" / "audit.jsonl"


def test_records_are_lines_of_json_with_a_number_in_a_private_file(path):
    assert AuditFile(path).append([sent(1), AuditRecord(action=Action.DENIED, uid=0)]) == 2
    first, second = lines(path)
    assert (first["seq"], first["action"], first["what"]) == (1, "sent", "record 1")
    assert (second["seq"], second["uid"]) == (2, 0), "the user root is told from no user"
    assert "token" not in first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_numbers_go_on_after_a_restart_a_rotation_and_a_deletion(path):
    AuditFile(path).append([sent(1)])
    file = AuditFile(path, size=400, files=3)
    for number in range(2, 30):
        file.append([sent(number)])
    kept = file.read(0, 1000)
    assert numbers(kept) == list(range(kept[0].seq, 30)), "the oldest are gone, none is missing"
    assert 1 < kept[0].seq < 29
    assert {each.name for each in path.parent.iterdir()} == {
        *("audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.lock"),
    }
    for each in path.parent.glob("audit.jsonl*"):
        each.unlink()
    file.append([sent(30)])
    assert numbers(file.read(0, 10)) == [30]


def test_a_cursor_finds_its_place_in_any_file(path):
    file = AuditFile(path, size=100_000, files=4)
    file.append([sent(number) for number in range(2500)])
    head = file.read(None, 1)[0].seq
    assert head == 2500
    assert path.with_name("audit.jsonl.1").exists()
    for after in (0, 1, 777, 1234, 2498, 2499):
        assert numbers(file.read(after, 2)) == list(range(after + 1, min(after + 3, 2501)))
    assert file.read(2500, 10) == file.read(10**9, 10) == []
    assert numbers(file.read(None, 3)) == [2498, 2499, 2500]
    seen, after = [], 0
    while page := file.read(after, 99):
        seen += numbers(page)
        after = seen[-1]
    assert seen == list(range(1, 2501))


def test_what_a_full_disk_left_of_a_line_is_skipped_and_harms_no_other(path):
    file = AuditFile(path)
    file.append([sent(1)])
    with path.open("ab") as torn:
        torn.write(b'{"seq":2,"time":"20')
    file.append([sent(3)])
    assert [record.what for record in file.read(0, 10)] == ["record 1", "record 3"]


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_nothing_but_a_regular_file_of_our_own_is_written(path, tmp_path, kind):
    path.parent.mkdir(parents=True)
    target = tmp_path / "victim"
    target.write_text("precious")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(OSError, match=r"."):
        AuditFile(path).append([sent(1)])
    assert target.read_text() == "precious"


def test_a_lock_file_that_is_a_link_is_not_followed(path, tmp_path):
    path.parent.mkdir(parents=True)
    path.with_name("audit.jsonl.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"."):
        AuditFile(path).append([sent(1)])
    assert not (tmp_path / "victim").exists()


WRITER = """
import sys
from pathlib import Path
from crush_trio.audit.file import AuditFile
from crush_trio.audit.record import Action, AuditRecord
file = AuditFile(Path(sys.argv[1]), size=20_000, files=9)
for number in range(150):
    file.append([AuditRecord(action=Action.SENT, client_id=sys.argv[2], what=str(number))] * 2)
"""


@pytest.mark.slow
def test_servers_that_write_at_the_same_time_lose_and_repeat_nothing(path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    records = AuditFile(path, files=9).read(0, 10_000)
    assert numbers(records) == list(range(1, 601))
    for name in ("a", "b"):
        own = [record.what for record in records if record.client_id == name]
        assert own == [str(number) for number in range(150) for _ in range(2)]
    assert path.with_name("audit.jsonl.2").exists()


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"HOME": "/h"}, "/h/.local/state/crush/audit.jsonl"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s"}, "/s/crush/audit.jsonl"),
        ({"HOME": "/h", "XDG_STATE_HOME": "relative"}, "/h/.local/state/crush/audit.jsonl"),
        ({}, "/account/.local/state/crush/audit.jsonl"),
        ({"HOME": "relative"}, "/account/.local/state/crush/audit.jsonl"),
    ],
)
def test_the_file_is_in_the_state_directory_of_the_user(environ, place, monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_dir="/account"))
    assert str(audit_path(environ)) == place


def test_a_user_id_without_a_home_directory_has_no_audit(monkeypatch, caplog):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert audit_path({}) is None
    [finding] = doctor.audit({})
    assert (finding.level, finding.advice) == (doctor.Level.WARN, "set HOME or XDG_STATE_HOME")
    warn_without_audit(ServerSettings(audit=audit_path({})))
    assert caplog.messages == ["audit.none"]
