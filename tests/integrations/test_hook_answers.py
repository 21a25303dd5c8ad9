"""Which hooks are asked, what they are told, and what their answers amount to."""

import orjson
import pytest
from attrs import evolve

from crush_trio.integrations.hook_answers import (
    NO_OPINION,
    Decision,
    HookAnswer,
    combine_answers,
    invalid_variable_answer,
    read_answer,
)
from crush_trio.integrations.hook_input import (
    MAX_VARIABLE_BYTES,
    Subject,
    claude_name,
    matching_hooks,
)
from crush_trio.tools.base import Media, ToolCall, ToolResult
from crush_trio.tools.shell.jobs import COLUMNS
from crush_trio.wire.config import HookConfig
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from tests.integrations.hook_programs import input_of

DENY, ALLOW = HookAnswer(decision=Decision.DENY), HookAnswer(decision=Decision.ALLOW)
HALT = HookAnswer(halt=True)


def hook(command="check", **more):
    return HookConfig(command=command, **more)


def call(name="bash", **arguments):
    return ToolCall(
        id=ToolCallId("c1"),
        name=name,
        input=orjson.dumps(arguments).decode(),
        session_id=SessionId("s1"),
        run_id=RunId("r1"),
        message_id=MessageId("m1"),
        permit=None,
    )


def matching(hooks, name, servers=()):
    return matching_hooks(hooks, Subject(ours=name, theirs=claude_name(name, servers)))


def said(**parts):
    return read_answer(0, orjson.dumps(parts).decode(), "")


def together(*answers):
    return combine_answers(tuple(hook(str(n)) for n in range(len(answers))), answers).combined


# ── Which are asked ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I9")
@pytest.mark.parametrize(
    ("event", "asked"),
    [
        ("PreToolUse", True),
        ("pretooluse", True),
        ("pre_tool_use", True),
        ("PRE_TOOL_USE", True),
        ("PostToolUse", False),
        ("pre-tool-use", False),
        ("", False),
    ],
)
def test_an_event_is_known_by_its_letters(event, asked):
    assert matching({event: (hook(),)}, "bash") == ((hook(),) if asked else ())


@pytest.mark.item("I9")
@pytest.mark.parametrize(
    ("matcher", "asked"),
    [
        ("", "bash edit view"),
        ("*", "bash edit view"),
        ("^(bash|edit)$", "bash edit"),
        ("i", "edit view"),
        ("Bash", "bash"),
        ("Read|Edit", "edit view"),
        ("B", ""),
    ],
)
def test_a_matcher_is_looked_for_in_the_name_of_the_tool(matcher, asked):
    hooks = {"PreToolUse": (hook(matcher=matcher),)}
    assert [name for name in ("bash", "edit", "view") if matching(hooks, name)] == asked.split()


@pytest.mark.item("I9")
def test_a_command_is_asked_once_in_the_order_of_the_configuration():
    hooks = {
        "PreToolUse": (hook("b", matcher="nothing"), hook("a", name="first"), hook("b")),
        "pre_tool_use": (hook("a", name="second"), hook("c")),
        "Stop": (hook("d"),),
    }
    assert matching(hooks, "bash") == (hook("a", name="first"), hook("b"), hook("c"))


# ── What they are told ──────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I10")
def test_a_hook_is_told_of_the_call():
    asked = input_of(call(command="ls", file_path="/a"), "/project/work", "/project")
    assert asked.payload(hook()).endswith(b"}\n")
    assert orjson.loads(asked.payload(hook())) == {
        "event": "PreToolUse",
        "hook_event_name": "PreToolUse",
        "tool_use_id": "c1",
        "session_id": "s1",
        "cwd": "/project/work",
        "tool_name": "bash",
        "tool_input": {"command": "ls", "file_path": "/a"},
    }
    assert asked.variables == {
        "CRUSH_EVENT": "PreToolUse",
        "CRUSH_TOOL_NAME": "bash",
        "CRUSH_SESSION_ID": "s1",
        "CRUSH_CWD": "/project/work",
        "CRUSH_PROJECT_DIR": "/project",
        "CRUSH_TOOL_INPUT_COMMAND": "ls",
        "CRUSH_TOOL_INPUT_FILE_PATH": "/a",
        "CLAUDE_PROJECT_DIR": "/project",
    }


@pytest.mark.item("I10")
@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (hook(matcher="bash"), "bash"),
        (hook(matcher="*"), "bash"),
        (hook(matcher="Bash"), "Bash"),
        (hook(type="command"), "Bash"),
    ],
)
def test_a_hook_of_claude_code_is_told_the_name_that_it_knows(asked, name):
    assert orjson.loads(input_of(call()).payload(asked))["tool_name"] == name


def test_tools_of_mcp_servers_have_two_underscores_in_the_other_spelling():
    servers = ("git", "git_hub", "x")
    assert claude_name("mcp_git_hub_list", servers) == "mcp__git_hub__list"
    assert claude_name("mcp_git_log", servers) == "mcp__git__log"
    hooks = {"PreToolUse": (hook(matcher="mcp__git__.*"),)}
    assert matching(hooks, "mcp_git_log", servers)
    assert not matching(hooks, "mcp_git_hub_list", servers)


@pytest.mark.item("I10")
@pytest.mark.parametrize("arguments", [{}, {"command": 5}, {"command": ["ls"], "path": "/a"}])
def test_there_is_no_variable_for_what_is_no_text(arguments):
    asked = input_of(call(**arguments))
    assert not any(name.startswith("CRUSH_TOOL_INPUT") for name in asked.variables)


@pytest.mark.parametrize(
    ("command", "unfit"),
    [
        ("x" * MAX_VARIABLE_BYTES, False),
        ("é" * MAX_VARIABLE_BYTES, True),
        ("x" * (MAX_VARIABLE_BYTES + 1), True),
        ("a\0b", True),
    ],
)
def test_a_call_that_no_program_can_be_started_with_is_refused(command, unfit):
    asked = input_of(call(command=command))
    assert asked.invalid_variable == ("CRUSH_TOOL_INPUT_COMMAND" if unfit else "")
    answer = invalid_variable_answer("CRUSH_TOOL_INPUT_COMMAND")
    assert answer.refuses
    assert "CRUSH_TOOL_INPUT_COMMAND" in answer.reason


# ── What one of them answers ────────────────────────────────────────────────────────────────────


@pytest.mark.item("I10")
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (0, NO_OPINION),
        (2, evolve(DENY, reason="no, never")),
        (49, evolve(DENY, reason="no, never", halt=True)),
        (1, NO_OPINION),
        (127, NO_OPINION),
        (None, NO_OPINION),
    ],
)
def test_an_exit_code_is_an_answer(code, answer):
    assert read_answer(code, "", "no, never\n") == answer


@pytest.mark.item("I10")
@pytest.mark.parametrize("code", [1, 3, 127, None])
def test_a_hook_that_failed_is_not_believed(code):
    assert read_answer(code, '{"decision": "allow"}', "") is NO_OPINION


@pytest.mark.item("I10")
def test_a_refusal_by_exit_code_needs_no_reason_and_reads_no_output():
    assert read_answer(2, '{"decision": "allow", "context": "x"}', "") == DENY


@pytest.mark.item("I10")
@pytest.mark.parametrize("text", ["", "  \n", "fine", "[]", "3", "null", '{"decision": "al', "{}"])
def test_what_is_no_object_is_no_opinion(text):
    assert read_answer(0, text, "deny") == NO_OPINION


@pytest.mark.item("I10")
@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ({"decision": "allow"}, ALLOW),
        ({"decision": "DENY", "reason": "r"}, evolve(DENY, reason="r")),
        ({"decision": "block"}, DENY),
        ({"decision": "approve"}, ALLOW),
        ({"decision": "ask"}, HookAnswer(decision=Decision.ASK)),
        ({"halt": True, "reason": "r"}, evolve(HALT, reason="r")),
        ({"halt": False}, NO_OPINION),
        ({"context": "c"}, HookAnswer(context="c")),
        ({"context": ["a", "", 3, "b"]}, HookAnswer(context="a\nb")),
        ({"updated_input": {"a": 1}}, HookAnswer(patch={"a": 1})),
        ({"updated_input": '{"a": 1}'}, HookAnswer(patch={"a": 1})),
        ({"updated_input": None}, NO_OPINION),
        ({"updated_input": [1]}, NO_OPINION),
        ({"version": 2, "unknown": {}}, NO_OPINION),
        ({"continue": False, "stopReason": "r"}, evolve(HALT, reason="r")),
    ],
)
def test_an_object_is_an_answer(parts, answer):
    assert said(**parts) == answer


@pytest.mark.item("I10")
@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ({"permissionDecision": "allow"}, ALLOW),
        (
            {"permissionDecision": "deny", "permissionDecisionReason": "r"},
            evolve(DENY, reason="r"),
        ),
        ({"permissionDecision": "ask"}, HookAnswer(decision=Decision.ASK)),
        ({"updatedInput": {"a": 1}}, HookAnswer(patch={"a": 1})),
        ({"additionalContext": "c"}, HookAnswer(context="c")),
        ({"hookEventName": "PreToolUse"}, NO_OPINION),
    ],
)
def test_an_envelope_is_an_answer_too(parts, answer):
    assert said(hookSpecificOutput=parts) == answer
    assert said(hookSpecificOutput=parts, halt=True) == evolve(answer, halt=True)


@pytest.mark.item("I10")
def test_a_part_of_the_wrong_type_does_not_hide_a_refusal():
    assert said(decision="deny", reason=5, context={}, updated_input=7, halt="yes") == DENY


def test_what_a_model_is_told_has_an_end():
    answer = said(decision="deny", reason="r" * 2 * COLUMNS, context="c" * 2 * COLUMNS)
    for text in (answer.reason, answer.context, read_answer(2, "", "e" * 2 * COLUMNS).reason):
        assert COLUMNS <= len(text) < COLUMNS + 100
        assert "truncated" in text


# ── What all of them answer ─────────────────────────────────────────────────────────────────────


@pytest.mark.item("I9")
@pytest.mark.parametrize(
    ("answers", "decision", "halt"),
    [
        ((NO_OPINION,), Decision.NONE, False),
        ((NO_OPINION, ALLOW), Decision.ALLOW, False),
        ((ALLOW, NO_OPINION), Decision.ALLOW, False),
        ((ALLOW, DENY), Decision.DENY, False),
        ((DENY, ALLOW), Decision.DENY, False),
        ((HALT, ALLOW), Decision.ALLOW, True),
        ((ALLOW, HALT, NO_OPINION), Decision.ALLOW, True),
    ],
)
def test_a_no_outweighs_a_yes_and_a_halt_stays(answers, decision, halt):
    answer = together(*answers)
    assert (answer.decision, answer.halt) == (decision, halt)
    assert answer.refuses is (halt or decision is Decision.DENY)


@pytest.mark.item("I9")
def test_reasons_of_refusals_and_all_contexts_are_joined_in_order():
    answer = together(
        HookAnswer(decision=Decision.DENY, reason="first", context="one"),
        HookAnswer(decision=Decision.ALLOW, reason="not this"),
        HookAnswer(context="two"),
        HookAnswer(halt=True, reason="second"),
    )
    assert (answer.reason, answer.context) == ("first\nsecond", "one\ntwo")


@pytest.mark.item("I9", "I11")
def test_patches_replace_whole_arguments_and_the_last_one_wins():
    patches = [{"a": {"x": 1}, "b": 1}, {}, {"b": 2, "c": None}]
    verdict = combine_answers(
        (hook("1"), hook("2"), hook("3")), [HookAnswer(patch=patch) for patch in patches]
    )
    given = call(a={"y": 0}, z=9)
    made = verdict.rewritten(given)
    assert orjson.loads(made.input) == {"a": {"x": 1}, "b": 2, "c": None, "z": 9}
    assert evolve(made, input=given.input) == given


@pytest.mark.item("I11")
def test_a_call_that_nobody_changes_stays_the_same():
    given = call(a=1)
    assert combine_answers((hook(),), [ALLOW]).rewritten(given) is given


# ── What becomes of it ──────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I11")
@pytest.mark.parametrize(
    ("answer", "content", "stops"),
    [
        (DENY, "A hook has refused this call", False),
        (evolve(DENY, reason="why"), "A hook has refused this call: why", False),
        (evolve(HALT, reason="why"), "A hook has ended the turn: why", True),
    ],
)
def test_a_refusal_is_an_error_that_the_model_sees(answer, content, stops):
    refusal = combine_answers((hook(),), [answer]).refusal()
    assert refusal == ToolResult(content=content, is_error=True, stop_turn=stops)


@pytest.mark.item("I11")
@pytest.mark.parametrize(("content", "added"), [("seen", "seen\nmore"), ("", "more")])
def test_context_follows_what_the_tool_said(content, added):
    media = Media(data=b"x", mime_type="image/png")
    verdict = combine_answers((hook(),), [HookAnswer(context="more")])
    result = verdict.added_to(ToolResult(content=content, is_error=True, media=media))
    assert (result.content, result.is_error, result.media) == (added, True, media)


@pytest.mark.item("I11")
def test_those_who_look_on_see_what_each_hook_said():
    hooks = (hook("check --token=abc", matcher="bash"), hook("b", name="rewriter"), hook("c"))
    answers = [
        HookAnswer(decision=Decision.ALLOW, reason="fine"),
        HookAnswer(patch={"a": 1}),
        HookAnswer(decision=Decision.DENY, halt=True, reason="why", context="secret of the model"),
    ]
    result = combine_answers(hooks, answers).added_to(ToolResult(metadata={"diff": "d"}))
    assert result.metadata == {
        "diff": "d",
        "hook": {
            "hook_count": 3,
            "decision": "deny",
            "halt": True,
            "reason": "why",
            "input_rewrite": True,
            "hooks": [
                {
                    "name": "check --token=[redacted]",
                    "matcher": "bash",
                    "decision": "allow",
                    "reason": "fine",
                },
                {"name": "rewriter", "decision": "none", "input_rewrite": True},
                {"name": "c", "decision": "deny", "halt": True, "reason": "why"},
            ],
        },
    }


def test_a_denial_counts_even_if_its_reason_is_not_unicode():
    said = read_answer(0, r'{"decision": "deny", "reason": "not \udce4.txt"}', "")
    assert (said.decision, said.reason) == (Decision.DENY, "not ?.txt")
    assert read_answer(0, '{"a":' * 100_000, "") == NO_OPINION
