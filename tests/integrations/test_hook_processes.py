"""Hooks as real programs: what they are handed, what they answer, and that none is left running."""

import os
from types import SimpleNamespace

import orjson
import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.integrations.hook_answers import NO_OPINION, Decision
from crush_trio.integrations.hooks import ConfiguredHooks
from crush_trio.tools.shell.guard import link
from crush_trio.wire.config import HookConfig
from tests.integrations.hook_programs import call, configured
from tests.tools.altered_guard import altered
from tests.tools.process_probe import Mailbox, Reaped

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture
def ask(tmp_path):
    """Return what asks one shell script, or several."""

    async def ask(*hooks, asked=None):
        live = configured(*hooks, environment={"PATH": os.environ["PATH"]})
        live.current.project = SimpleNamespace(root=tmp_path)
        asking = ConfiguredHooks(live=live, directory=tmp_path, clock=SystemClock())
        asked = call(command="ls") if asked is None else asked
        with trio.fail_after(30):
            return await asking.ask(asking.matching(asked.name), asked)

    return ask


@pytest.mark.item("I10")
async def test_a_hook_reads_the_call_and_sees_it(ask, tmp_path):
    seen = 'echo "$CRUSH_EVENT $CRUSH_TOOL_NAME $CRUSH_SESSION_ID $CRUSH_TOOL_INPUT_COMMAND" > env'
    await ask(f"cat > payload; {seen}; pwd > cwd")
    assert orjson.loads((tmp_path / "payload").read_bytes())["tool_input"] == {"command": "ls"}
    assert (tmp_path / "env").read_text() == "PreToolUse bash s1 ls\n"
    assert (tmp_path / "cwd").read_text() == f"{tmp_path.resolve()}\n"


@pytest.mark.item("I10")
@pytest.mark.parametrize(
    ("script", "decision", "halt", "reason"),
    [
        ("echo no >&2; exit 2", Decision.DENY, False, "no"),
        ("echo no >&2; exit 49", Decision.DENY, True, "no"),
        ("""echo '{"decision": "allow"}'""", Decision.ALLOW, False, ""),
        ("""echo '{"decision": "allow"}'; exit 1""", Decision.NONE, False, ""),
        ("echo all is well", Decision.NONE, False, ""),
        ("kill -9 $$", Decision.NONE, False, ""),
        ("no-such-program-anywhere", Decision.NONE, False, ""),
    ],
)
async def test_a_hook_answers(ask, script, decision, halt, reason):
    answer = (await ask(script)).combined
    assert (answer.decision, answer.halt, answer.reason) == (decision, halt, reason)


@pytest.mark.item("I10")
@pytest.mark.parametrize("script", ["exit 2", "exec <&-; sleep 0.2; exit 2", "head -c 9; exit 2"])
async def test_a_hook_need_not_read_what_it_is_told(ask, script):
    """The call is more than a pipe holds."""
    verdict = await ask(script, asked=call("write", content="x" * 300_000))
    assert verdict.combined.decision is Decision.DENY


@pytest.mark.item("I10")
async def test_a_whole_large_call_reaches_a_hook(ask):
    asked = call("write", content="x" * 300_000)
    verdict = await ask("""echo "{\\"context\\": \\"$(wc -c)\\"}" """, asked=asked)
    assert int(verdict.combined.context) > 300_000


@pytest.mark.item("I10")
async def test_more_than_can_be_read_is_no_opinion_and_does_not_block(ask):
    verdict = await ask("""printf '{"decision": "deny", "context": "'; head -c 3000000 /dev/zero""")
    assert verdict.combined == NO_OPINION


@pytest.mark.item("I10")
async def test_a_hook_that_does_not_stop_is_killed_a_second_after_its_time(ask, tmp_path):
    stubborn = "trap '' TERM; (trap '' TERM; echo $BASHPID > child; sleep 60) & echo $$ > leader; wait; wait"
    began = trio.current_time()
    verdict = await ask(HookConfig(command=stubborn, timeout=1), "exit 2")
    assert 2 <= trio.current_time() - began < 20
    assert [each.decision for each in verdict.answers] == [Decision.NONE, Decision.DENY]
    for name in ("leader", "child"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


@pytest.mark.item("I10")
async def test_what_a_hook_leaves_behind_does_not_outlive_it(ask, tmp_path):
    verdict = await ask("setsid sleep 60 & echo $! > child; exit 2")
    assert verdict.combined.decision is Decision.DENY
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)


@pytest.mark.item("A20", "I11")
async def test_a_cancelled_call_ends_its_hooks_before_it_is_over(ask, tmp_path):
    os.mkfifo(tmp_path / "ready")
    reaped = Reaped()
    async with trio.open_nursery() as nursery:
        script = "cat > /dev/null; echo $$ > leader; echo > ready; sleep 60"
        asked = call(reaped=reaped)
        nursery.start_soon(lambda: ask(script, asked=asked))
        async with await trio.open_file(tmp_path / "ready") as ready:
            await ready.read()
        nursery.cancel_scope.cancel()
    leader = int((tmp_path / "leader").read_text())
    assert leader in reaped.stopped
    with pytest.raises(ProcessLookupError):
        os.kill(leader, 0)


@pytest.mark.item("A20", "I11")
async def test_a_hook_whose_call_is_cancelled_while_it_is_opened_is_accounted_for(
    ask, tmp_path, monkeypatch
):
    monkeypatch.setattr(link, "GUARD", altered(link.GUARD, "say started", "no token"))
    reaped = Reaped()
    with Mailbox(tmp_path) as mailbox:
        async with trio.open_nursery() as nursery:
            asked = call(reaped=reaped)
            nursery.start_soon(lambda: ask(f"echo $$ > {mailbox}; exec sleep 60", asked=asked))
            leader = int(await mailbox.line())
            nursery.cancel_scope.cancel()
    assert (reaped.stopped, reaped.left) == ([leader], [])
    with pytest.raises(ProcessLookupError):
        os.kill(leader, 0)
