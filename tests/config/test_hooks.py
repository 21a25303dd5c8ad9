"""Hooks in configuration files: what cannot be meant, what is never run, and whose word counts."""

import pytest

from crush_trio.config import ConfigInvalid, ConfigWarningKind
from crush_trio.wire.config import HookConfig
from tests.config.homes import texts
from tests.config.test_untrusted_files import ignored


def hooks(*commands, event="PreToolUse"):
    return {"hooks": {event: [{"command": command} for command in commands]}}


def commands(loaded, event="PreToolUse"):
    return [hook.command for hook in loaded.config.hooks.get(event, ())]


BAD = [
    {"command": " "},
    {"matcher": "bash"},
    {"command": "x", "matcher": "("},
    {"command": "x", "matcher": "a{99999999999999999999}"},
]


@pytest.mark.item("I11")
@pytest.mark.parametrize("bad", BAD)
async def test_a_hook_that_cannot_work_is_an_error(home, bad):
    home.write(home.user_file, {"hooks": {"pre_tool_use": [{"command": "fine"}, bad]}})
    with pytest.raises(ConfigInvalid, match=r"hooks\.pre_tool_use\[1\]\.(command|matcher)"):
        await home.load()


@pytest.mark.item("I11")
async def test_a_bad_hook_of_the_users_is_not_hidden_behind_a_project(home):
    home.write(home.user_file, {"hooks": {"PreToolUse": [{"command": "x", "matcher": "("}]}})
    home.write(home.project_file, hooks("theirs"))
    with pytest.raises(ConfigInvalid, match="matcher") as caught:
        await home.load()
    assert str(home.user_file) in str(caught.value)


@pytest.mark.item("I9")
async def test_an_event_that_never_comes_is_told_of(home):
    home.write(home.user_file, hooks("x"))
    home.write(home.project_file, hooks("x", event="PRE_TOOL_USE"))
    home.trust()
    assert texts(await home.load(), ConfigWarningKind.NOT_USED) == []
    unknown = hooks("x", "", event="Notification")
    unknown["hooks"]["Stop"] = [{"type": "prompt", "prompt": "done?"}]
    home.write(home.user_file, unknown)
    assert texts(await home.load(), ConfigWarningKind.NOT_USED) == [
        f"{home.user_file}: hooks.Notification: unknown event, its hooks are never run; "
        "the events are PreToolUse, PostToolUse, UserPromptSubmit, SessionStart, Stop",
        f"{home.user_file}: hooks.Stop[0].type: hooks of this type are never run; "
        "the only type is command",
    ]


@pytest.mark.item("I9")
async def test_the_nested_form_of_claude_code_is_read(home):
    pasted = {
        "PreToolUse": [
            {
                "matcher": "Bash",
                "hooks": [
                    {"type": "command", "command": "one", "timeout": 5},
                    {"type": "command", "command": "two"},
                ],
            },
            {"matcher": "*", "command": "three"},
        ],
        "Stop": [{"hooks": [{"type": "command", "command": "four"}]}],
    }
    home.write(home.user_file, {"hooks": pasted})
    loaded = await home.load()
    assert texts(loaded, ConfigWarningKind.NOT_USED) == []
    assert loaded.config.hooks["PreToolUse"] == (
        HookConfig(matcher="Bash", command="one", timeout=5, type="command"),
        HookConfig(matcher="Bash", command="two", type="command"),
        HookConfig(matcher="*", command="three"),
    )
    assert commands(loaded, "Stop") == ["four"]
    home.write(home.project_file, {"hooks": pasted})
    wishes = [wish.text for wish in (await home.load()).wishes.items]
    assert "run a hook: one" in wishes


# ── Trust ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I11")
@pytest.mark.parametrize("where", ["project_file", "workspace_file"])
async def test_a_project_has_no_hooks_until_it_is_trusted(home, where):
    file = home.write(getattr(home, where), hooks("theirs"))
    loaded = await home.load()
    assert loaded.config.hooks == {}
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == [ignored(home, "hooks", file)]
    home.trust()
    loaded = await home.load()
    assert commands(loaded) == ["theirs"]
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == []


@pytest.mark.item("I11")
@pytest.mark.parametrize(
    "theirs", [{"hooks": {"PreToolUse": []}}, {"hooks": None}, {"hooks": {"PreToolUse": None}}]
)
async def test_a_project_does_not_take_the_users_hooks_away(home, theirs):
    home.write(home.user_file, hooks("mine"))
    home.write(home.project_file, theirs)
    assert commands(await home.load()) == ["mine"]
    home.trust()
    assert commands(await home.load()) == []
