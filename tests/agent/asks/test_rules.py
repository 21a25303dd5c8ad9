"""Rules of the configuration: their order, what they match, and those made from requests."""

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.asks.permit import DENIED, RULED_OUT
from crush_trio.config.rules.rules import load_rules
from crush_trio.errors import RuleNotPossible
from crush_trio.testing.explore import explore
from crush_trio.tools.base import ToolError
from crush_trio.wire.asks import (
    GrantScope,
    PermissionAction,
    PermissionMode,
    PermissionPolicy,
    PermissionRule,
    RuleDecision,
)
from tests.agent.asking import ROOT, Office, wanted

ALLOW, SESSION, DENY = PermissionAction.ALLOW, PermissionAction.ALLOW_SESSION, PermissionAction.DENY
FILE = Path("/home/u/crush.json")


def rule(text, directory=""):
    """Return a rule that is written as `decision tool pattern`."""
    decision, tool, *pattern = text.split(" ", 2)
    return PermissionRule(
        decision=RuleDecision(decision), tool=tool, pattern="".join(pattern), directory=directory
    )


def ruled(*texts, **more):
    """Return an office with these rules."""
    office, found = (
        Office(**more),
        [text if isinstance(text, PermissionRule) else rule(text) for text in texts],
    )
    office.permissions.rules = lambda: load_rules(found, FILE)
    return office


def command(text, **more):
    return wanted(params={"command": text, "working_dir": str(ROOT), **more})


def file(path, directory=ROOT):
    return wanted(action="write", params={"file_path": str(path)}, path=directory)


async def decided(office, want, tool="bash", **more):
    """Return "allowed", "denied" or "asked"."""
    more.setdefault("policy", PermissionMode.DENY)
    before = len(office.told)
    verdict = await office.verdict(wanted=want, tool=tool, **more)
    if verdict in {"allowed", RULED_OUT}:
        return "allowed" if verdict == "allowed" else "denied"
    assert office.told[before:] == ["asked c1", "denied c1"]
    return "asked"


# ── The order ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F19")
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], "asked"),
        (["allow bash git push *"], "allowed"),
        (["allow bash git push *", "ask bash git *"], "asked"),
        (["allow bash git push *", "ask bash git *", "deny bash git push *"], "denied"),
        (["deny bash", "allow bash git push *"], "denied"),
        (["deny view", "allow bash npm test *"], "asked"),
        (["deny bas*"], "denied"),
    ],
)
async def test_a_denial_wins_then_asking_then_allowing(rules, expected):
    assert await decided(ruled(*rules), command("git push")) == expected


@pytest.mark.item("F19")
async def test_a_denial_holds_also_where_nothing_is_asked():
    office = ruled("deny bash git push *", allowed=["bash"])
    office.permissions.skip = True
    push = command("git push")
    for more in ({}, {"policy": PermissionMode.ALLOW}):
        assert await decided(office, push, **more) == "denied"
        assert await decided(office, command("git pull"), **more) == "allowed"
    with pytest.raises(ToolError) as refused:
        await office.permit()(push)
    assert refused.value.result.metadata == {"permission_refused": "rule"}
    assert office.told[-2:] == ["asked c1", "denied c1"]


@pytest.mark.item("F19")
@pytest.mark.parametrize(
    ("rules", "restricted"),
    [
        ([], False),
        (["allow bash git log *"], False),
        (["deny bash git push *"], False),
        (["deny view"], False),
        (["deny bash"], True),
        (["ask bash *"], True),
        (["deny bash git *", "allow bash git log *"], True),
        ([rule("deny bash git log *", "/elsewhere")], False),
    ],
)
async def test_rules_that_ask_or_deny_are_also_about_commands_that_only_read(rules, restricted):
    assert ruled(*rules).permissions.restricts("git log -1", ROOT) is restricted


@pytest.mark.item("F19")
async def test_a_rule_that_asks_wins_over_lists_and_grants():
    office = ruled("ask bash git push *", allowed=["bash"])
    policy = PermissionPolicy(mode=PermissionMode.DENY, allow_list=("bash",))
    push = command("git push")
    assert await decided(office, push, policy=policy) == "asked"
    async with trio.open_nursery() as nursery:
        calls = [office.want(nursery, call, wanted=push) for call in ("c1", "c2")]
        await wait_all_tasks_blocked()
        assert office.permissions.answer(office.permissions.pending[0].id, SESSION)
        await wait_all_tasks_blocked()
        assert {call.result for call in calls} == {"allowed", None}
        nursery.cancel_scope.cancel()
    assert await decided(office, push) == "asked"


@pytest.mark.item("F20")
@pytest.mark.parametrize(
    ("tool", "want"),
    [
        ("bash", command("echo x > .git/config")),
        ("bash", command("touch a", outside_sandbox=True)),
        ("bash", command("cat .crush/crush.json")),
        ("edit", file("/srv/project/.git/hooks/pre-commit")),
        ("edit", file("/srv/project/.crush/crush.json", Path("/srv/project/.crush"))),
        ("view", file("/home/u/.zshrc", Path("/home/u"))),
        ("download", wanted(params={"url": "https://a/x", "file_path": "/srv/project/.git/x"})),
    ],
)
async def test_git_crush_start_up_files_and_leaving_the_sandbox_are_always_asked(tool, want):
    rules = ["allow edit **", "allow view /home/u/**", "allow download a", "allow bash > *"]
    office = ruled(
        *rules, "allow bash touch *", "allow bash cat *", allowed=["bash", "edit", "download"]
    )
    assert await decided(office, want, tool) == "asked"
    unanswered = await office.verdict(wanted=want, tool=tool, policy=PermissionMode.ALLOW)
    assert unanswered != "allowed"
    async with trio.open_nursery() as nursery:
        office.want(nursery, wanted=want, tool=tool)
        await wait_all_tasks_blocked()
        [request] = office.permissions.pending
        with pytest.raises(RuleNotPossible, match="asked each time"):
            office.permissions.rules_for(request.id)
        assert office.permissions.answer(request.id, SESSION)
    assert office.permissions.grants == ()
    assert await decided(office, want, tool) == "asked"
    office.permissions.skip = True
    assert await decided(office, want, tool) == "allowed"
    hooked = office.permit(tool=tool)
    hooked.approve()
    office.permissions.skip = False
    await hooked(want)


# ── What rules match ────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F19")
@pytest.mark.parametrize(
    ("text", "tool", "want", "expected"),
    [
        ("allow bash touch <paths>", "bash", command("touch a && touch b"), "allowed"),
        ("allow bash touch <paths>", "bash", command("touch a && rm b"), "asked"),
        ("allow bash pytest *", "bash", command("pytest -x --lf tests"), "allowed"),
        ("allow bash pytest *", "bash", command("pytest /tmp"), "asked"),
        ("allow bash = sh -c 'make'", "bash", command("sh -c 'make'"), "allowed"),
        ("allow bash = make", "bash", command("make", working_dir="/srv/project/sub"), "asked"),
        ("deny bash = make", "bash", command("make", working_dir="/srv/project/sub"), "denied"),
        ("allow bash ./a *", "bash", command("./a x"), "allowed"),
        ("allow bash ./a *", "bash", command("./a x", working_dir="/srv/project/sub"), "asked"),
        ("deny bash rm *", "bash", command("sh -c 'touch a; rm b'"), "denied"),
        ("allow edit src/**", "edit", file("/srv/project/src/a/b"), "allowed"),
        ("allow edit src/**", "edit", file("/srv/project/a"), "asked"),
        ("allow edit notes.md", "edit", file("/srv/project/notes.md"), "allowed"),
        ("deny edit /srv/project/src/**", "edit", file("/srv/project/src/a"), "denied"),
        ("allow edit **", "edit", file("/srv/project/keys/a", ROOT / "keys"), "asked"),
        ("allow view /var/log/**", "view", file("/var/log/x", Path("/var/log")), "allowed"),
        ("allow fetch *.a.org", "fetch", wanted(params={"url": "http://b.a.org/x"}), "allowed"),
        ("allow fetch *.a.org", "fetch", wanted(params={"url": "http://a.org/x"}), "asked"),
        ("allow fetch https://a.org", "fetch", wanted(params={"url": "http://a.org/x"}), "asked"),
        ("deny fetch a.org", "fetch", wanted(params={"url": "https://A.org:8/"}), "denied"),
        (
            "allow download a",
            "download",
            wanted(params={"url": "https://a/x", "file_path": "/srv/project/x"}),
            "allowed",
        ),
        (
            "allow download a",
            "download",
            wanted(params={"url": "https://a/x", "file_path": "/tmp/x"}),
            "asked",
        ),
        ("allow mcp_db_query", "mcp_db_query", wanted(params={"sql": "1"}), "allowed"),
        ("deny mcp_db_*", "mcp_db_query", wanted(params={"sql": "1"}), "denied"),
    ],
)
async def test_a_rule_matches_by_its_tool_and_its_pattern(text, tool, want, expected):
    office = ruled(text)
    office.permissions.private = lambda: (ROOT / "keys",)
    assert await decided(office, want, tool) == expected


@pytest.mark.item("F19")
async def test_a_rule_may_hold_in_some_directories_only():
    touch = command("touch a")
    assert await decided(ruled(rule("allow bash touch <paths>", "/srv")), touch) == "allowed"
    assert await decided(ruled(rule("allow bash touch <paths>", "/srv/pro")), touch) == "asked"


@pytest.mark.item("F19")
async def test_the_commands_of_a_line_may_be_allowed_by_different_rules():
    office = ruled("allow bash git add *", "allow bash git commit *")
    assert await decided(office, command("git add a && git commit -m x | cat")) == "allowed"
    assert await decided(office, command("git add a && git push")) == "asked"


# ── Rules from requests ─────────────────────────────────────────────────────────────────────────


async def rules_of(want, tool="bash"):
    """Return the rules for a request that waits, or the error that there are none."""
    office, found = Office(), ()
    async with trio.open_nursery() as nursery:
        office.want(nursery, wanted=want, tool=tool)
        await wait_all_tasks_blocked()
        try:
            found = office.permissions.rules_for(office.permissions.pending[0].id)
        except RuleNotPossible as error:
            found = error
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.item("F19")
@pytest.mark.parametrize(
    ("tool", "want", "patterns"),
    [
        ("bash", command("git add a && npm test > log"), ["git add *", "npm test *", "> *"]),
        ("bash", command("rm -rf build"), ["= rm -rf build"]),
        ("edit", file("/srv/project/a"), ["/srv/project/**"]),
        ("fetch", wanted(params={"url": "https://a/x"}), ["https://a"]),
        (
            "download",
            wanted(params={"url": "https://a/x", "file_path": "/srv/project/d/x"}),
            ["https://a"],
        ),
        ("mcp_db_query", wanted(params={"sql": "1"}), [""]),
    ],
)
async def test_an_answer_for_always_becomes_rules_of_this_workspace(tool, want, patterns):
    rules = await rules_of(want, tool)
    assert [each.pattern for each in rules] == patterns
    assert {(each.decision, each.tool, each.directory) for each in rules} == {
        (RuleDecision.ALLOW, tool, str(ROOT))
    }
    assert await decided(ruled(*rules), want, tool) == "allowed"


@pytest.mark.item("F19")
@pytest.mark.parametrize(
    ("tool", "want"),
    [
        ("bash", command("sh -c 'touch a'")),
        ("bash", command("python x.py")),
        ("bash", command("$PROGRAM a")),
        ("bash", command("touch 'a")),
        ("bash", command("rm -rf build", working_dir="/srv/project/sub")),
        ("download", wanted(params={"url": "https://a/x", "file_path": "/tmp/x"})),
        ("read_mcp_resource", wanted(params={"mcp_name": "db"})),
        ("fetch", wanted(params={"url": "nowhere"})),
    ],
)
async def test_no_rule_is_made_from_what_a_pattern_cannot_describe(tool, want):
    assert isinstance(await rules_of(want, tool), RuleNotPossible)


def test_there_are_no_rules_for_a_request_that_does_not_wait():
    assert Office().permissions.rules_for("ask-9") == ()


# ── New rules and waiting requests ──────────────────────────────────────────────────────────────


@pytest.mark.item("F19")
async def test_new_rules_settle_the_requests_that_wait():
    office = ruled()
    async with trio.open_nursery() as nursery:
        texts = ["touch a", "rm b", "npm test"]
        calls = [office.want(nursery, t, wanted=command(t)) for t in texts]
        await wait_all_tasks_blocked()
        office.permissions.rules = lambda: load_rules(
            [rule("allow bash touch <paths>"), rule("deny bash rm *")], FILE
        )
        office.permissions.apply_rules()
        await wait_all_tasks_blocked()
        assert [call.result for call in calls] == ["allowed", DENIED, None]
        nursery.cancel_scope.cancel()


async def rule_against_ask():
    """A rule that comes at any moment of an ask settles it, and clients hear of one ending."""
    office = ruled()

    async def allow():
        await trio.lowlevel.checkpoint()
        office.permissions.rules = lambda: load_rules([rule("allow bash touch <paths>")], FILE)
        office.permissions.apply_rules()

    async with trio.open_nursery() as nursery:
        call = office.want(nursery, wanted=command("touch a"))
        nursery.start_soon(allow)
    assert call.result == "allowed"
    assert office.told.count("granted c1") == 1
    return tuple(office.told)


async def grant_against_herd():
    """A grant settles everything of a herd that it covers, at any moment, and nothing else."""
    office = Office()
    texts = ["touch a", "touch b", "rm -rf ."]

    async def answer():
        await wait_all_tasks_blocked()
        [first] = [each for each in office.permissions.pending if each.tool_call_id == "touch a"]
        assert office.permissions.answer(first.id, SESSION)

    async with trio.open_nursery() as nursery:
        calls = [office.want(nursery, text, wanted=command(text)) for text in texts]
        nursery.start_soon(answer)
        await wait_all_tasks_blocked()
        late = office.want(nursery, "touch c", wanted=command("touch c"))
        await wait_all_tasks_blocked()
        assert [call.result for call in (*calls, late)] == ["allowed", "allowed", None, "allowed"]
        assert office.pending == ["rm -rf ."]
        nursery.cancel_scope.cancel()
    return len(office.permissions.grants)


async def two_answers_for_always():
    """Of two answers one counts; only the one that counts may write its rules."""
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.want(nursery, wanted=command("touch a"))
        await wait_all_tasks_blocked()
        [request] = office.permissions.pending
        answers = {}

        async def answer(name, action, scope):
            await trio.lowlevel.checkpoint()
            answers[name] = office.permissions.answer(request.id, action, scope)

        nursery.start_soon(partial(answer, "always", ALLOW, GrantScope.ALWAYS))
        nursery.start_soon(partial(answer, "deny", DENY, None))
    assert sorted(answers.values()) == [False, True]
    assert (call.result == "allowed") is answers["always"]
    assert office.permissions.grants == ()
    return call.result


SCENARIOS = {
    rule_against_ask: {("asked c1", "granted c1"), ("asked c1", "request c1", "granted c1")},
    grant_against_herd: {1},
    two_answers_for_always: {"allowed", DENIED},
}


@pytest.mark.heavy
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_rules_and_grants_keep_their_promises_under_every_schedule(scenario, report_exploration):
    found = explore(scenario, deviations=2, limit=500)
    report_exploration(found)
    assert set(found.outcomes) == SCENARIOS[scenario]
