"""A run for pipes and programs, and what its ending means to the shell."""

import io
import json

import pytest
from attrs import evolve
from rich.console import Console

from crush_trio.cli.commands.run import RunOptions
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.report.plain import JsonReporter, PlainReporter, ending_lines, piece_object
from crush_trio.cli.report.reporter import RunEnd, RunStart, exit_code_of_run
from crush_trio.client.events import RunEvent
from crush_trio.client.follower import Asked, Progress, RunEnded, Settled
from crush_trio.client.messages import (
    MessageFinished,
    MessageRestarted,
    ReasoningPiece,
    TextPiece,
    ToolCallBegun,
    ToolCallFinished,
    ToolResult,
)
from crush_trio.wire.answers import HitView, ReceiptView
from crush_trio.wire.asks import PermissionMode, PermissionPolicy, PermissionRequest
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.messages import FinishPart, FinishReason, ToolCallPart, ToolResultPart
from crush_trio.wire.runs import RunState, RunView

CALL = ToolCallPart(id="c1", name="bash", input='{"command":"touch x"}', finished=True)
RESULT = ToolResultPart(tool_call_id="c1", name="bash", content="hi")
ASK = PermissionRequest(
    id="p1", session_id="s1", tool_call_id="c1", tool_name="bash", description="Execute it"
)


def run(state=RunState.COMPLETED, **more):
    return RunView(id="r1", session_id="s1", state=state, **more)


def start(provider="openai"):
    return RunStart(
        session_id="s1",
        run_id="r1",
        directory="/w",
        model=SelectedModel(provider=provider, model="m"),
        server="embedded",
    )


def end(state=RunState.COMPLETED, code=0, *, denied=None, receipt=None, **more):
    return RunEnd(
        run=run(state, **more), code=code, seconds=1.23456, denied=denied, receipt=receipt
    )


@pytest.mark.parametrize(
    ("text", "refusal", "policy", "advice"),
    [
        ("{}", "forbidden", {}, "--allow-tool bash, or everything with --policy allow"),
        ("{}", "unanswered", {"mode": PermissionMode.ALLOW}, "asked under every policy; run it at"),
        ("{}", "unanswered", {"allow_list": ("bash:execute",)}, "asked under every policy; run it"),
        ('{"outside_sandbox": true}', "forbidden", {}, "leaving the sandbox is asked under every"),
        ("{}", "always_asked", {}, "is asked under every policy; run it at a terminal"),
        ("{}", "rule", {"mode": PermissionMode.ALLOW}, "see crush-trio permissions"),
    ],
)
def test_the_advice_after_a_refusal_is_one_that_helps(text, refusal, policy, advice):
    call = ToolCallPart(id="c", name="bash", input=text)
    ended = evolve(end(denied=call), refusal=refusal, policy=PermissionPolicy(**policy))
    assert advice in ended.advice


# ── Exit codes ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("B20")
@pytest.mark.parametrize(
    ("state", "denied", "timed_out", "code"),
    [
        (RunState.COMPLETED, False, False, ExitCode.OK),
        (RunState.COMPLETED, True, False, ExitCode.DENIED),
        (RunState.COMPLETED, False, True, ExitCode.OK),
        (RunState.ERRORED, False, False, ExitCode.FAILED),
        (RunState.INTERRUPTED, False, False, ExitCode.FAILED),
        (RunState.CANCELLED, False, False, ExitCode.CANCELLED),
        (RunState.CANCELLED, True, True, ExitCode.TIMED_OUT),
    ],
)
def test_an_ending_has_an_exit_code(state, denied, timed_out, code):
    assert exit_code_of_run(run(state), denied=denied, timed_out=timed_out) == code


@pytest.mark.parametrize(
    ("given", "interactive", "mode"),
    [(None, True, "ask"), (None, False, "deny"), ("ask", False, "ask"), ("allow", True, "allow")],
)
def test_a_run_without_a_person_is_denied_what_nobody_allowed(given, interactive, mode):
    policy = None if given is None else PermissionMode(given)
    options = RunOptions(prompt="x", directory="/", policy=policy, allowed_tools=("view",))
    permissions = options.permissions(interactive=interactive)
    assert (permissions.mode.value, permissions.allow_list) == (mode, ("view",))


# ── Text ────────────────────────────────────────────────────────────────────────────────────────


class Written:
    """What a reporter wrote, to either side."""

    def __init__(self, *, quiet=False, terminal=False):
        self.out, self.notes = [], io.StringIO()
        console = Console(file=self.notes, width=200, force_terminal=terminal, color_system=None)
        self.reporter = PlainReporter(self.out.append, console, quiet=quiet)

    def report(self, ending, *pieces, provider="openai"):
        self.reporter.began(start(provider))
        for piece in pieces:
            self.reporter.tell(piece)
        self.reporter.ended(ending)
        return "".join(self.out), self.notes.getvalue()


@pytest.mark.item("B20")
def test_text_is_the_answer_of_the_run_and_nothing_else():
    out, notes = Written().report(
        end(text=" \tHello"), TextPiece("m1", "Hel"), ToolResult("m2", RESULT)
    )
    assert (out, notes) == ("Hello\n", "")


def test_the_demo_says_how_to_get_a_real_model_unless_it_has_to_be_quiet():
    assert "ANTHROPIC_API_KEY" in Written().report(end(), provider="demo")[1]
    assert Written(quiet=True).report(end(), provider="demo") == ("", "")


def test_somebody_who_watches_the_notes_sees_the_tools():
    pieces = [ToolCallFinished("m1", CALL), ToolResult("m2", RESULT)]
    assert Written(terminal=True).report(end(text="x"), *pieces) == ("x\n", "✓ bash touch x\n")


def test_a_failure_is_told_and_kept_out_of_the_answer():
    out, notes = Written(quiet=True).report(end(RunState.ERRORED, 1, error="no\x1b luck"))
    assert out == ""
    assert notes == "The run failed: no␛ luck\n"


def test_a_denial_says_what_was_denied_and_how_to_allow_it():
    _, notes = Written().report(end(code=4, denied=CALL))
    assert "not allowed to use bash touch x" in notes
    assert "--allow-tool bash" in notes


def test_a_cancel_says_what_it_stopped():
    hit = HitView(
        id="r1", session_id="s1", state=RunState.ACTIVE, ended=RunState.CANCELLED, seconds=0.5
    )
    receipt = ReceiptView(complete=True, hits=(hit,))
    out, notes = Written().report(end(RunState.CANCELLED, 130, text="so far", receipt=receipt))
    assert out == "so far\n"
    assert notes.splitlines() == [
        "Stopped 1 run in 0.50 s; nothing is left running.",
        "The run was cancelled.",
    ]
    [line] = ending_lines(end(RunState.CANCELLED, ExitCode.TIMED_OUT))
    assert line.plain == "The run was cancelled after its timeout."


def test_an_ask_that_nobody_here_can_answer_is_mentioned():
    assert "waits for an answer: Execute it" in Written().report(end(), Asked(ASK))[1]


CUT = FinishPart(reason=FinishReason.MAX_TOKENS, time=1, message="Cut off: the answer ...")
FAILED = FinishPart(reason=FinishReason.ERROR, time=1, message="no")


@pytest.mark.parametrize("quiet", [False, True])
def test_that_an_answer_is_not_whole_is_told_also_to_scripts(quiet):
    """With `-q`, half an answer and none at all looked like success."""
    assert Written(quiet=quiet).report(end(), MessageFinished("m", CUT))[1] == f"{CUT.message}\n"
    assert Written(quiet=quiet).report(end(), MessageFinished("m", FAILED))[1] == ""


@pytest.mark.parametrize("stream", [False, True])
def test_that_an_answer_is_not_whole_is_a_notice_of_the_last_object(stream):
    out = []
    reporter = JsonReporter(out.append, stream=stream)
    reporter.began(start())
    for finish in (FAILED, CUT):
        reporter.tell(MessageFinished("m", finish))
    reporter.ended(end())
    assert json.loads(out[-1])["notices"] == [CUT.message]


def test_progress_is_a_note():
    assert "half\n" in Written().report(end(), Progress("half"))[1]


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────


PIECES = [
    (TextPiece("m1", "hi"), {"type": "text", "message_id": "m1", "text": "hi"}),
    (ReasoningPiece("m1", "hm"), {"type": "reasoning", "message_id": "m1", "text": "hm"}),
    (ToolCallBegun("m1", CALL), None),
    (
        ToolCallFinished("m1", CALL),
        {
            "type": "tool_call",
            "message_id": "m1",
            "id": "c1",
            "name": "bash",
            "input": {"command": "touch x"},
        },
    ),
    (
        ToolResult("m2", RESULT),
        {
            "type": "tool_result",
            "message_id": "m2",
            "id": "c1",
            "name": "bash",
            "content": "hi",
            "is_error": False,
        },
    ),
    (
        MessageFinished("m1", FinishPart(reason=FinishReason.ERROR, time=1, message="no")),
        {"type": "message_end", "message_id": "m1", "reason": "error", "error": "no"},
    ),
    (MessageRestarted("m1"), {"type": "restart", "message_id": "m1"}),
    (RunEvent(run(RunState.QUEUED)), {"type": "state", "state": "queued"}),
    (Settled(ASK, granted=True), {"type": "settled", "id": "p1", "granted": True}),
    (Progress("1 of 2"), {"type": "progress", "text": "1 of 2"}),
    (RunEnded(run()), None),
]


@pytest.mark.parametrize(("piece", "line"), PIECES)
def test_each_thing_that_happens_is_one_line(piece, line):
    assert piece_object(piece) == line


def test_an_ask_is_told_with_all_that_is_asked():
    line = piece_object(Asked(ASK))
    assert (line["type"], line["kind"], line["request"]["tool_name"]) == (
        "asked",
        "permission",
        "bash",
    )


def test_arguments_that_are_no_json_are_passed_on_as_they_are():
    broken = ToolCallPart(id="c1", name="bash", input="{oops", finished=True)
    assert piece_object(ToolCallFinished("m1", broken))["input"] == "{oops"


def reported(*, stream):
    out = []
    reporter = JsonReporter(out.append, stream=stream)
    reporter.began(start())
    reporter.tell(TextPiece("m1", "h\ni"))
    reporter.tell(RunEnded(run()))
    reporter.ended(end(text="h\ni", denied=CALL, code=4))
    return [json.loads(line) for line in "".join(out).splitlines()]


def test_a_stream_begins_with_the_start_and_ends_with_the_end():
    first, text, last = reported(stream=True)
    assert {
        "type",
        "format",
        "version",
        "session_id",
        "run_id",
        "directory",
        "model",
        "server",
    } == set(first)
    assert (first["format"], first["model"]) == (1, "openai/m")
    assert text["text"] == "h\ni"
    assert last == {
        "type": "end",
        "outcome": "completed",
        "exit_code": 4,
        "text": "h\ni",
        "error": "",
        "denied": "bash",
        "seconds": 1.235,
        "receipt": None,
        "notices": [],
    }


def test_one_object_has_both_ends_of_the_stream():
    first, _, last = reported(stream=True)
    assert reported(stream=False) == [{**first, **last, "type": "run"}]
