"""The audit of a real server on a Unix socket: whom the kernel names, and what is written when."""

import json
import os

import pytest

from crush_trio.server.tokens import Right, TokenFile, tokens_path
from tests.e2e.test_server_process import CLIENT, serving

pytestmark = pytest.mark.slow


def records(folder):
    lines = (folder / "state" / "crush" / "audit.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


def test_the_kernel_names_the_user_and_a_command_runs_after_its_record(tmp_path, home):
    audit = tmp_path / "state" / "crush" / "audit.jsonl"
    with serving(tmp_path, host=f"unix://{tmp_path}/s", extra=home) as server:
        workspace = server.create(tmp_path)
        session = server.start_run(workspace)
        shell = {"command": f"grep -c '\"shell\"' {audit}"}
        status, ran = server.ask("POST", f"{workspace}/agent/sessions/{session}/shell", shell)
        assert (status, ran["output"].strip()) == (200, "1")
        server.ask("DELETE", f"{workspace}?client_id={CLIENT}")
        assert server.stop()[0] == 0
    found = records(tmp_path)
    assert [each["action"] for each in found] == [
        *("workspace_created", "sent", "shell", "workspace_deleted"),
    ]
    assert {each["uid"] for each in found} == {os.getuid()}
    assert [each["seq"] for each in found] == [1, 2, 3, 4]
    assert found[2]["result"] == "begun"
    assert "hello" not in audit.read_text()


def test_a_server_with_tokens_can_stay_open_to_its_own_user_on_the_socket(tmp_path, home):
    with serving(tmp_path, host=f"unix://{tmp_path}/s", extra=home) as server:
        assert server.ask("GET", "/version")[0] == 200
        TokenFile(tokens_path(home)).add("phone", Right.WATCH)
        assert server.ask("GET", "/version")[0] == 401, "without a restart"
    options = ("--open-to-owner",)
    with serving(tmp_path, *options, host=f"unix://{tmp_path}/s2", extra=home) as server:
        assert server.ask("GET", "/version")[0] == 200
    with serving(tmp_path, *options, extra=home) as server:
        assert server.ask("GET", "/version")[0] == 401, "TCP does not say who asks"
