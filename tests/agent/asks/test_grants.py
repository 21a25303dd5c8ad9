"""The pure rules: what an allow-list has, which directory counts, and what a grant covers."""

from pathlib import Path

import pytest
from attrs import evolve

from crush_trio.agent.asks.permissions import Grants, covers, directory_of, in_allow_list
from crush_trio.wire.asks import Grant, GrantScope, PermissionRequest
from crush_trio.wire.ids import AskId, RunId, SessionId, ToolCallId

REQUEST = PermissionRequest(
    id=AskId("a"),
    session_id=SessionId("s"),
    tool_call_id=ToolCallId("c"),
    tool_name="bash",
    action="execute",
    path="/w",
)
GRANT = Grant(
    id=AskId("g"),
    scope=GrantScope.PROJECT,
    session_id=SessionId("s"),
    run_id=RunId("r"),
    tool_name="bash",
    action="execute",
    path="/w",
)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), False),
        (("bash",), True),
        (("bash:execute",), True),
        (("bash:write",), False),
        (("execute",), False),
        (("BASH", "bas", "bash:"), False),
    ],
)
def test_an_entry_is_a_tool_or_one_action_of_it(entries, expected):
    assert in_allow_list(entries, "bash", "execute") is expected


@pytest.mark.item("F1")
def test_a_file_stands_for_its_directory_and_everything_else_for_itself(tmp_path):
    (tmp_path / "file").write_text("x")
    assert directory_of(tmp_path / "file", Path("/w")) == str(tmp_path)
    assert directory_of(tmp_path, Path("/w")) == str(tmp_path)
    assert directory_of(tmp_path / "missing", Path("/w")) == str(tmp_path / "missing")
    assert directory_of(Path(), Path("/w")) == "/w"
    assert directory_of(Path("/w/x" + "y" * 300), Path("/w")).startswith("/w/x")


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (GrantScope.ONCE, []),
        (GrantScope.RUN, ["run"]),
        (GrantScope.SESSION, ["run", "session"]),
        (GrantScope.PROJECT, ["run", "session", "elsewhere"]),
    ],
)
def test_a_scope_says_how_far_a_grant_reaches(scope, covered):
    grant = evolve(GRANT, scope=scope)
    asked = {
        "run": (REQUEST, RunId("r")),
        "session": (REQUEST, RunId("other")),
        "elsewhere": (evolve(REQUEST, session_id=SessionId("other")), RunId("other")),
    }
    assert [name for name, request in asked.items() if covers(grant, *request)] == covered


@pytest.mark.parametrize(
    "change", [{"tool_name": "fetch"}, {"action": "write"}, {"path": "/w/sub"}]
)
def test_a_grant_is_for_one_action_of_one_tool_in_one_directory(change):
    for scope in GrantScope:
        assert not covers(evolve(GRANT, scope=scope), evolve(REQUEST, **change), RunId("r"))


def test_grants_are_listed_revoked_and_forgotten():
    grants = Grants()
    for scope in (GrantScope.RUN, GrantScope.SESSION, GrantScope.PROJECT):
        grants.remember(evolve(GRANT, id=AskId(scope), scope=scope))
    assert [grant.id for grant in grants.all] == ["run", "session", "project"]
    grants.forget_run(RunId("other"))
    grants.forget_session(SessionId("other"))
    assert len(grants.all) == 3
    grants.forget_run(RunId("r"))
    assert [grant.id for grant in grants.all] == ["session", "project"]
    grants.forget_session(SessionId("s"))
    assert [grant.id for grant in grants.all] == ["project"]
    assert grants.cover(REQUEST, RunId("r"))
    assert grants.revoke(AskId("project"))
    assert not grants.revoke(AskId("project"))
    assert not grants.cover(REQUEST, RunId("r"))
