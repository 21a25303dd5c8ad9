"""Permission rules in files: whose count, what is refused, and changes to them."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.config import ConfigInvalid, ConfigWarningKind, open_live_config, shown_config
from crush_trio.config.checks import file_schema
from crush_trio.config.files import ConfigFile
from crush_trio.config.rules.patterns import (
    HostPattern,
    Invocation,
    PatternInvalid,
    Rest,
    origin_of,
    parse_command,
    parse_host,
    parse_path,
)
from crush_trio.config.rules.rules import check_rule, load_rules, rule_id
from crush_trio.wire.asks import PermissionRule, RuleDecision
from crush_trio.wire.codec import structure
from tests.config.homes import CATALOGUE

PUSH = {"decision": "deny", "tool": "bash", "pattern": "git push *"}
TEST = {"decision": "allow", "tool": "bash", "pattern": "npm test *"}


def written(*rules):
    return {"permissions": {"rules": list(rules)}}


def rule(decision="allow", tool="bash", pattern="touch <paths>", directory=""):
    return PermissionRule(
        decision=RuleDecision(decision), tool=tool, pattern=pattern, directory=directory
    )


def shown(loaded):
    return [f"{each.rule.decision} {each.rule.pattern}" for each in loaded.rules]


@pytest.mark.item("F19")
async def test_the_rules_of_all_files_of_the_user_count_together(home):
    home.write(home.system_file, written(PUSH))
    home.write(home.user_file, written(TEST))
    home.write(home.data_file, written({"decision": "ask", "tool": "edit"}))
    loaded = await home.load()
    assert shown(loaded) == ["deny git push *", "allow npm test *", "ask "]
    assert [each.pattern for each in shown_config(loaded).permissions.rules] == [
        *("git push *", "npm test *", "")
    ]


@pytest.mark.item("F19")
@pytest.mark.parametrize("trusted", [False, True])
async def test_the_rules_of_a_project_are_ignored_even_if_it_is_trusted(home, trusted):
    if trusted:
        home.trust()
    home.write(home.user_file, written(PUSH))
    home.write(home.project_file, written(TEST))
    home.write(home.workspace_file, written(TEST))
    loaded = await home.load()
    assert shown(loaded) == ["deny git push *"]
    assert len(shown_config(loaded).permissions.rules) == 1
    said = [each for each in loaded.warnings if each.key == "permissions.rules"]
    assert {each.kind for each in said} == {ConfigWarningKind.NOT_TRUSTED}
    assert {each.file for each in said} == {home.project_file, home.workspace_file}
    assert "only your own files" in said[0].text
    assert len(said) == 2, "one warning for each file"
    assert loaded.wishes is None, "no trust would change it"


@pytest.mark.parametrize(
    ("wrong", "where", "what"),
    [
        ({"tool": "bash", "decision": "maybe"}, "decision", "unknown value"),
        ({"decision": "allow", "tool": " "}, "tool", "the name of a tool"),
        ({"decision": "allow", "tool": "bash"}, "pattern", "permissions.allowed_tools"),
        ({**TEST, "pattern": "*"}, "pattern", "name the program"),
        ({**TEST, "pattern": "sh -c *"}, "pattern", "sh runs other programs"),
        ({**TEST, "pattern": "python3.12 x.py"}, "pattern", "python runs other programs"),
        ({**TEST, "pattern": "git *"}, "pattern", "name the subcommand of git"),
        ({**TEST, "pattern": "git -c x=y commit *"}, "pattern", "name the subcommand of git"),
        ({**TEST, "pattern": "npm run *"}, "pattern", "name the subcommand of npm"),
        ({**TEST, "pattern": "git config *"}, "pattern", "git config can run other programs"),
        ({**TEST, "pattern": "rm -rf *"}, "pattern", "write the whole command"),
        ({**TEST, "pattern": "touch 'a"}, "pattern", "expected a command"),
        ({**TEST, "pattern": "a && b"}, "pattern", "expected one command"),
        ({**TEST, "directory": "work"}, "directory", "expected an absolute path"),
        ({"decision": "deny", "tool": "edit", "pattern": "../x"}, "pattern", "without '..'"),
        ({"decision": "deny", "tool": "edit", "pattern": "*.py"}, "pattern", "followed by '/**'"),
        ({"decision": "deny", "tool": "fetch", "pattern": "a b"}, "pattern", "expected a host"),
        ({"decision": "deny", "tool": "agent", "pattern": "x"}, "pattern", "expected no pattern"),
    ],
)
async def test_a_wrong_rule_is_named_with_its_place(home, wrong, where, what):
    home.write(home.user_file, written(PUSH, wrong))
    with pytest.raises(ConfigInvalid) as refused:
        await home.load()
    assert str(home.user_file) in refused.value.detail
    assert f"permissions.rules[1].{where}" in refused.value.detail
    assert what in refused.value.detail


@pytest.mark.item("F19")
async def test_rules_are_added_once_and_removed_by_their_id(home):
    home.write(home.user_file, written(PUSH))
    async with open_live_config(home.places(), catalogue=CATALOGUE) as live:
        assert await live.add_rules([rule(), rule(), rule("ask", pattern="make *")])
        assert not await live.add_rules([rule()])
        assert shown(live.current) == ["deny git push *", "allow touch <paths>", "ask make *"]
        views = [each.view(home.data_file) for each in live.current.rules]
        assert [each.removable for each in views] == [False, True, True]
        assert json.loads(home.data_file.read_text())["permissions"]["rules"][0] == {
            "decision": "allow",
            "tool": "bash",
            "pattern": "touch <paths>",
        }
        with pytest.raises(ConfigInvalid, match="sh runs other programs"):
            await live.add_rules([rule(pattern="sh *")])
        assert await live.remove_rule(rule_id(rule()))
        assert not await live.remove_rule(rule_id(rule()))
        assert not await live.remove_rule(views[0].id), "it is in a file that is not written here"
        assert shown(live.current) == ["deny git push *", "ask make *"]


def test_an_id_is_that_of_the_content():
    ids = {rule_id(rule()), rule_id(rule("deny")), rule_id(rule(directory="/x"))}
    assert len(ids) == 3
    assert rule_id(rule()) in ids


def test_the_schema_describes_rules():
    [parts] = [file_schema()["$defs"]["PermissionRule"]]
    assert set(parts["required"]) == {"decision", "tool"}
    assert set(parts["properties"]) == {"decision", "tool", "pattern", "directory"}


# ── Patterns ────────────────────────────────────────────────────────────────────────────────────

words = st.lists(st.text("ab-./ '\"*$<>", min_size=1, max_size=6), min_size=1, max_size=4)


@given(words, st.sampled_from(Rest))
def test_a_command_is_read_as_it_was_written(found, rest):
    pattern = Invocation(tuple(found), rest)
    try:
        assert parse_command(str(pattern)) == pattern
    except PatternInvalid:
        assert any(not word.strip("<>") for word in found)


@pytest.mark.parametrize("text", ["src/**", "**", "/**", "/srv/x/**", "a.md", "/srv/a"])
def test_a_path_is_read_as_it_was_written(text):
    assert str(parse_path(text)) == text


@pytest.mark.parametrize(
    "text", ["a.org", "*.a.org", "https://a.org", "http://a:81", "a:8", "[::1]"]
)
def test_a_host_is_read_as_it_was_written(text):
    assert str(parse_host(text)) == text


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://A.org./x", HostPattern("a.org", "https", 443)),
        ("http://u:p@a:81?x", HostPattern("a", "http", 81)),
        ("https://[::1]:8/", HostPattern("[::1]", "https", 8)),
        ("ftp://a/x", None),
        ("https:///x", None),
        ("http://a:99999/", None),
        ("nonsense", None),
    ],
)
def test_the_origin_of_an_address(url, origin):
    assert origin_of(url) == origin


def test_the_rules_and_patterns_of_the_page_are_valid():
    page = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text("utf-8")
    [text] = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    rules = structure(json.loads(text), ConfigFile).permissions.rules
    assert len(load_rules(rules, Path("/x"))) == 6
    added = re.findall(r"permissions add (?:--here )?(\w+) (\w+) '(.*?)'", page)
    assert len(added) == 2
    for decision, tool, pattern in added:
        check_rule(rule(decision, tool, pattern))
