"""Grants: what an allow-list has, which directory counts, how far a grant reaches, what it covers."""

from pathlib import Path

import pytest
from attrs import evolve

from crush_trio.agent.asks.coverage import Coverage, Grants, in_allow_list, reaches, subject_of
from crush_trio.agent.asks.path_policy import PathPolicy, directory_of
from crush_trio.wire.asks import Grant, GrantScope, PermissionRequest
from crush_trio.wire.ids import AskId, RunId, SessionId, ToolCallId

PATHS = PathPolicy(workspace=Path("/w"), private=(Path("/w/data"), Path("/home/u/.config/crush")))
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


def asked(tool, action="", path="/w", **params):
    return evolve(REQUEST, tool_name=tool, action=action, path=path, params=params or None)


def bash(command, path="/w", **more):
    return asked("bash", "execute", path, command=command, working_dir=path, **more)


def edit(path, shown="/w", tool="edit"):
    return asked(tool, "write", shown, file_path=path)


def coverage(request):
    return Coverage.of(subject_of(request, PATHS), PATHS)


def covered(shown, later):
    """Whether a grant for one request covers another."""
    grants = Grants()
    grants.remember(GRANT, coverage(shown))
    return grants.cover(subject_of(later, PATHS), RunId("r"), PATHS)


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
        (GrantScope.ALWAYS, []),
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
    assert [name for name, request in asked.items() if reaches(grant, *request)] == covered


@pytest.mark.item("F18")
@pytest.mark.parametrize(
    ("request_", "texts"),
    [
        (bash("git commit -m x && touch a > b"), ("git commit *", "touch <paths>", "> *")),
        (bash("sh -c 'touch a'"), ("= sh -c 'touch a'",)),
        (edit("/w/src/a.py"), ("/w/**",)),
        (edit("/tmp/x/a", "/tmp/x", "view"), ("/tmp/x/**",)),
        (asked("fetch", "fetch", url="https://Example.org/a?b"), ("https://example.org",)),
        (
            asked("download", "download", url="http://h:81/a", file_path="/w/dl/a"),
            ("http://h:81", "/w/dl/**"),
        ),
        (asked("mcp_db_query", "execute", sql="select 1"), ("mcp_db_query",)),
        (asked("read_mcp_resource", "read", mcp_name="db"), ("read_mcp_resource db",)),
    ],
)
def test_a_grant_says_what_it_covers(request_, texts):
    assert coverage(request_).texts == texts
    assert covered(request_, request_)


@pytest.mark.item("F18")
@pytest.mark.parametrize(
    ("shown", "later", "expected"),
    [
        (bash("touch one"), bash("touch two", "/w/sub"), True),
        (bash("touch one"), bash("rm -rf ."), False),
        (bash("touch one"), bash("touch two", "/etc"), False),
        (bash("sh -c x"), bash("sh -c x"), True),
        (bash("sh -c x"), bash("sh -c x", "/w/sub"), False),
        (bash("touch one"), bash("touch two", outside_sandbox=True), False),
        (bash("touch one"), bash("touch .git/config"), False),
        (bash("touch one"), bash("touch config", "/w/.git"), False),
        (edit("/w/a"), edit("/w/sub/b"), True),
        (edit("/w/a"), edit("/w/b", tool="write"), False),
        (edit("/w/a"), edit("/w/.git/hooks/x"), False),
        (edit("/w/a"), edit("/w/.crush/crush.json", "/w/.crush"), False),
        (edit("/w/a"), edit("/w/.bashrc"), False),
        (edit("/w/a"), edit("/w/data/crush.db", "/w/data"), False),
        (edit("/w/a"), edit("/etc/passwd", "/etc"), False),
        (edit("/home/u/a", "/home/u", "view"), edit("/home/u/b/c", "/home/u/b", "view"), True),
        (
            edit("/home/u/a", "/home/u", "view"),
            edit("/home/u/.ssh/id", "/home/u/.ssh", "view"),
            False,
        ),
        (asked("fetch", url="https://a/x"), asked("fetch", url="https://a:443/y"), True),
        (asked("fetch", url="https://a/x"), asked("fetch", url="https://b/x"), False),
        (asked("fetch", url="https://a/x"), asked("fetch", url="https://a.evil/x"), False),
        (asked("fetch", url="https://a/x"), asked("fetch", url="https://a@b/x"), False),
        (asked("fetch", url="https://a/x"), asked("fetch", url="http://a/x"), False),
        (asked("fetch", url="https://a/x"), asked("fetch", url="https://a:8443/x"), False),
        (
            asked("download", url="https://a/x", file_path="/w/dl/x"),
            asked("download", url="https://a/y", file_path="/w/dl/sub/y"),
            True,
        ),
        (
            asked("download", url="https://a/x", file_path="/w/dl/x"),
            asked("download", url="https://a/y", file_path="/w/y"),
            False,
        ),
        (asked("mcp_db_query", sql="1"), asked("mcp_db_query", sql="2"), True),
        (asked("mcp_db_query", sql="1"), asked("mcp_db_drop"), False),
        (asked("read_mcp_resource", mcp_name="a"), asked("read_mcp_resource", mcp_name="b"), False),
        (asked("lsp_rename"), asked("lsp_rename"), True),
        (asked("lsp_rename"), asked("lsp_rename", path="/w/sub"), False),
    ],
)
def test_a_grant_covers_what_is_like_the_request_that_was_shown(shown, later, expected):
    assert covered(shown, later) is expected


def test_the_commands_of_a_line_may_be_covered_by_different_grants():
    grants, both = Grants(), bash("git add a && git commit -m x")
    for command in ("git add b", "git commit -m y"):
        assert not grants.cover(subject_of(both, PATHS), RunId("r"), PATHS)
        grants.remember(evolve(GRANT, id=AskId(command)), coverage(bash(command)))
    assert grants.cover(subject_of(both, PATHS), RunId("r"), PATHS)


def test_grants_are_listed_revoked_and_forgotten():
    grants, subject = Grants(), subject_of(REQUEST, PATHS)
    for scope in (GrantScope.RUN, GrantScope.SESSION, GrantScope.PROJECT):
        grants.remember(evolve(GRANT, id=AskId(scope), scope=scope), coverage(REQUEST))
    assert [grant.id for grant in grants.all] == ["run", "session", "project"]
    grants.forget_run(RunId("other"))
    grants.forget_session(SessionId("other"))
    assert len(grants.all) == 3
    grants.forget_run(RunId("r"))
    assert [grant.id for grant in grants.all] == ["session", "project"]
    grants.forget_session(SessionId("s"))
    assert [grant.id for grant in grants.all] == ["project"]
    assert grants.cover(subject, RunId("r"), PATHS)
    assert grants.revoke(AskId("project"))
    assert not grants.revoke(AskId("project"))
    assert not grants.cover(subject, RunId("r"), PATHS)
