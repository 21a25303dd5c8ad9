"""Every verdict of the torture kit can be `broken`, and is `kept` for a server that keeps its promises."""

import pytest
import trio

from crush_trio.net.address import TcpAddress
from crush_trio.testing.torture.promises import PROMISES, CannotRun, Trial
from crush_trio.testing.torture.target import open_target
from tests.testing.torture.wrong_server import WrongServer

NAMES = [promise.name for promise in PROMISES]
FORMS = pytest.mark.parametrize("native", [True, False], ids=["native", "crush"])


async def judge(native, *names, faults=(), limit=3600.0, seed=1):
    """Return the trial of a server with *faults*, and the lines that were printed."""
    lines = []
    async with trio.open_nursery() as nursery:
        server = WrongServer(native, faults if isinstance(faults, set) else set(faults), nursery)
        address, client = TcpAddress("127.0.0.1", 1), "00000000-0000-4000-8000-000000000001"
        async with open_target(address, server.dial, client, native=native) as target:
            trial = Trial(target, seed, "t", "/ws", limit, lines.append)
            try:
                await trial.run([promise for promise in PROMISES if promise.name in names])
            finally:
                nursery.cancel_scope.cancel()
    return trial, lines


def found(trial):
    return {verdict.name: verdict.verdict for verdict in trial.verdicts}


@pytest.mark.heavy
@FORMS
async def test_a_server_that_keeps_its_promises_gets_no_other_verdict(native):
    trial, lines = await judge(native, *NAMES)
    expected = dict.fromkeys(NAMES, "kept")
    if not native:
        expected["repeat"] = "not applicable"
    assert found(trial) == expected, trial.verdicts
    assert trial.exit_code == 0
    assert trial.report()["profile"] == ("native" if native else "crush")
    assert any(line.startswith("stored: kept (") for line in lines)


@FORMS
@pytest.mark.parametrize(
    ("fault", "name", "evidence"),
    [
        ("loses endings", "endings", "no ending of"),
        ("ends twice", "endings", "ended twice for one reader"),
        ("reorders", "queue-order", "which was accepted earlier"),
        ("loses cancels", "cancel-ends", "after the answer to its cancel"),
        ("spares the queue", "cancel-ends", "it waited behind"),
        ("spares the queue", "cancel-storm", "it waited behind"),
        ("loses cancels", "cancel-storm", "after the answer to its cancel"),
        ("sticky cancels", "cancel-later", "was cancelled by nothing that was sent"),
        ("blocks", "slow-readers", "nothing came on the event stream"),
        ("drops the backlog", "slow-readers", "no ending of"),
        ("drops hang-ups", "disconnect", "no ending of"),
        ("result first", "tool-order", "result came before call"),
        ("stores less", "stored", "and stored with"),
        ("stores less", "reconnect", "the stored answer is not finished"),
        ("stores less", "resume", "stored with"),
    ],
)
async def test_a_broken_promise_is_found(native, fault, name, evidence):
    trial, _ = await judge(native, name, faults=[fault])
    [verdict] = trial.verdicts
    assert verdict.verdict == "broken", verdict
    assert evidence in verdict.evidence
    assert trial.exit_code == 1


@pytest.mark.parametrize(
    ("fault", "name", "evidence"),
    [
        ("runs again", "repeat", "ended twice for one reader"),
        ("forgets places", "reconnect", "no ending of"),
        ("forgets places", "resume", "no ending of"),
        ("skips one", "resume", "a resumed stream has"),
    ],
)
async def test_a_broken_promise_of_the_native_wire_is_found(fault, name, evidence):
    trial, _ = await judge(True, name, faults=[fault])
    [verdict] = trial.verdicts
    assert (verdict.verdict, evidence in verdict.evidence) == ("broken", True), verdict


@FORMS
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("asks", "asks a person"), ("uses no tools", "called no tool")],
)
async def test_the_order_of_tool_calls_is_not_applicable_without_any(native, fault, sentence):
    trial, _ = await judge(native, "tool-order", faults=[fault])
    [verdict] = trial.verdicts
    assert (verdict.verdict, trial.exit_code) == ("not applicable", 0)
    assert sentence in verdict.evidence


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("refuses", "429 too many prompts"),
        ("fails", "see that the server has a model that works"),
        ("no workspace", "400 no; name a directory that the server may use with --directory"),
        ("loses endings", "the first prompt was not answered"),
    ],
)
async def test_a_server_that_answers_no_prompt_cannot_be_judged(fault, sentence):
    faults = [fault, "loses all"] if fault == "loses endings" else [fault]
    with pytest.RaisesGroup(pytest.RaisesExc(CannotRun, match=sentence)):
        await judge(False, "endings", faults=faults)


@FORMS
async def test_a_server_may_end_the_stream_of_a_reader_that_does_not_read(native):
    faults = {"ends slow streams"}
    trial, _ = await judge(native, "slow-readers", faults=faults)
    assert found(trial) == {"slow-readers": "kept"}, trial.verdicts
    assert not faults  # it has happened


async def test_refused_prompts_leave_a_promise_undecided():
    trial, _ = await judge(False, "endings", faults=["refuses later"])
    [verdict] = trial.verdicts
    assert (verdict.verdict, trial.exit_code) == ("undecided", 2)
    assert verdict.evidence == "the server refused a prompt: 429 too many prompts"


async def test_a_check_that_does_not_end_in_time_is_undecided():
    trial, _ = await judge(True, "endings", "stored", limit=0.05)
    assert found(trial) == {"endings": "undecided", "stored": "undecided"}
    assert trial.verdicts[0].evidence == "the time limit of 0.05 s was over"
    assert trial.exit_code == 2
