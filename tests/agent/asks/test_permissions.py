"""Permissions: what a rule settles, what is asked, and every way in which an ask ends."""

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.asks.asks import withdraw_orphans
from crush_trio.agent.asks.permit import DENIED, FORBIDDEN, UNANSWERED
from crush_trio.clock import TrioClock
from crush_trio.store.changes import AskOpened, AskResolved
from crush_trio.store.errors import DiskFull
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.explore import explore
from crush_trio.testing.explore.checkpoints import CheckpointFaults, Fault, Raise
from crush_trio.testing.server.faults import Moment
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.server.turns import prompt
from crush_trio.tools.base import ToolError
from crush_trio.wire.asks import (
    GrantScope,
    PermissionAction,
    PermissionMode,
    PermissionPolicy,
    PermissionRequest,
)
from crush_trio.wire.codec import decode
from crush_trio.wire.ids import AskId
from tests.agent.asking import WANTED, Office, wanted

ALLOW, SESSION, DENY = PermissionAction.ALLOW, PermissionAction.ALLOW_SESSION, PermissionAction.DENY
FIRST = AskId("ask-1")


# ── The policy of a submission ──────────────────────────────────────────────────────────────────


@pytest.mark.item("L16")
async def test_a_run_that_may_do_everything_asks_nobody():
    office = Office()
    assert await office.verdict(policy=PermissionMode.ALLOW) == "allowed"
    assert (office.told, office.opened()) == ([], [])


@pytest.mark.item("L16")
async def test_a_run_that_may_not_ask_is_refused_at_once_and_told_why():
    office = Office()
    assert await office.verdict(policy=PermissionMode.DENY) == FORBIDDEN
    assert office.told == ["asked c1", "denied c1"]
    assert office.opened() == []


@pytest.mark.parametrize(
    ("policy", "interactive", "refusal"),
    [
        (PermissionMode.DENY, True, "forbidden"),
        (PermissionMode.ASK, True, "unattended"),
        (PermissionMode.ASK, False, "unanswered"),
    ],
)
async def test_the_metadata_of_a_refusal_says_why_it_was_refused(policy, interactive, refusal):
    with pytest.raises(ToolError) as refused:
        await Office().permit(policy=policy, interactive=interactive)(wanted())
    assert refused.value.result.metadata == {"permission_refused": refusal}


@pytest.mark.parametrize("policy", PermissionMode)
async def test_what_no_policy_can_allow_is_refused_as_such_if_no_one_can_be_asked(policy):
    asked = wanted(always=True)
    with pytest.raises(ToolError) as refused:
        await Office().permit(policy=policy, interactive=False)(asked)
    assert refused.value.result.metadata == {"permission_refused": "always_asked"}
    assert "the policy of the run" not in refused.value.result.content


@pytest.mark.item("L16")
async def test_a_run_may_do_what_it_was_submitted_with_a_list_of():
    policy = PermissionPolicy(mode=PermissionMode.DENY, allow_list=("view", "bash:execute"))
    office = Office()
    assert await office.verdict(policy=policy) == "allowed"
    assert office.told == []
    assert await office.verdict(policy=policy, wanted=wanted(action="kill")) == FORBIDDEN


async def test_a_run_that_may_not_ask_still_has_what_a_person_allowed():
    office = Office()
    async with trio.open_nursery() as nursery:
        office.want(nursery)
        await wait_all_tasks_blocked()
        office.permissions.answer(FIRST, SESSION)
    assert await office.verdict(policy=PermissionMode.DENY) == "allowed"


def test_a_prompt_that_says_what_it_may_do_is_not_folded_into_a_turn_that_may_do_other_things():
    assert prompt("hello").foldable
    assert not prompt("hello", permissions=PermissionPolicy(mode=PermissionMode.DENY)).foldable
    assert prompt("hello") == prompt("hello", permissions=PermissionPolicy(allow_list=("bash",)))


# ── Scopes ──────────────────────────────────────────────────────────────────────────────────────


async def granted(office, scope, action=ALLOW):
    async with trio.open_nursery() as nursery:
        office.want(nursery)
        await wait_all_tasks_blocked()
        [request] = office.permissions.pending
        assert office.permissions.answer(request.id, action, scope)


async def allowed_in(office):
    """Return in which of three runs the same thing is allowed now."""
    places = {"run": {}, "session": {"run": "r2"}, "elsewhere": {"run": "r3", "session": "t"}}
    return [
        name
        for name, more in places.items()
        if await office.verdict(policy=PermissionMode.DENY, **more) == "allowed"
    ]


@pytest.mark.parametrize(
    ("scope", "reach"),
    [
        (GrantScope.ONCE, []),
        (GrantScope.RUN, ["run"]),
        (GrantScope.SESSION, ["run", "session"]),
        (GrantScope.PROJECT, ["run", "session", "elsewhere"]),
    ],
)
async def test_an_answer_reaches_as_far_as_its_scope_says(scope, reach):
    office = Office()
    await granted(office, scope)
    assert await allowed_in(office) == reach
    assert [grant.scope for grant in office.permissions.grants] == [scope] * bool(reach)


async def test_a_scope_wins_over_the_action():
    office = Office()
    await granted(office, GrantScope.ONCE, SESSION)
    assert office.permissions.grants == ()


async def test_what_was_granted_for_a_run_ends_with_it():
    office = Office()
    with office.permissions.granting("r"):
        await granted(office, GrantScope.RUN)
        assert await allowed_in(office) == ["run"]
    assert office.permissions.grants == ()


async def test_a_grant_can_be_revoked_once():
    office = Office()
    await granted(office, GrantScope.PROJECT)
    [grant] = office.permissions.grants
    assert office.permissions.revoke(grant.id)
    assert not office.permissions.revoke(grant.id)
    assert await allowed_in(office) == []


async def test_a_session_that_is_gone_is_forgotten():
    office = Office()
    await granted(office, GrantScope.SESSION)
    office.permissions.auto_approve("s")
    office.permissions.forget_session("s")
    assert await allowed_in(office) == []


async def test_a_grant_settles_whatever_else_waits_that_it_covers():
    office = Office()
    async with trio.open_nursery() as nursery:
        calls = [
            office.want(nursery, "c1"),
            office.want(nursery, "c2"),
            office.want(nursery, "c3", session="t"),
            office.want(nursery, "c4", wanted=wanted(action="kill")),
        ]
        await wait_all_tasks_blocked()
        of_call = {request.tool_call_id: request.id for request in office.permissions.pending}
        before = len(office.told)
        assert office.permissions.answer(of_call["c2"], SESSION)
        assert office.told[before:] == ["granted c2", "granted c1"]
        assert not office.permissions.answer(of_call["c1"], DENY)
        await wait_all_tasks_blocked()
        assert [call.result for call in calls] == ["allowed", "allowed", None, None]
        nursery.cancel_scope.cancel()


async def test_a_grant_that_comes_while_a_request_is_being_stored_settles_it():
    office = Office(FaultyStore(MemoryStore("b1"), latency=1.0))
    async with trio.open_nursery() as nursery:
        first = office.want(nursery, "c1")
        await trio.sleep(1.5)
        second = office.want(nursery, "c2")
        await wait_all_tasks_blocked()
        assert office.pending == ["c1"]
        assert office.permissions.answer(office.permissions.pending[0].id, SESSION)
    assert (first.result, second.result) == ("allowed", "allowed")
    assert office.told[-2:] == ["asked c2", "granted c2"]
    assert set(office.resolutions().values()) == {"granted"}


# ── What is stored ──────────────────────────────────────────────────────────────────────────────


async def test_an_ask_is_stored_before_anybody_hears_of_it():
    office = Office(FaultyStore(MemoryStore("b1"), latency=1.0))
    async with trio.open_nursery() as nursery:
        office.want(nursery)
        await wait_all_tasks_blocked()
        assert len(office.opened()) == 1
        assert (office.told, office.pending) == ([], [])
        await trio.sleep(1.5)
        assert office.told == ["asked c1", "request c1"]
        [row] = await office.store.pending_asks()
        assert (row.kind, row.session_id, row.run_id, row.tool_call_id) == (
            "permission",
            "s",
            "r",
            "c1",
        )
        assert (decode(row.payload, PermissionRequest),) == office.permissions.pending
        office.permissions.answer(FIRST, DENY)
    assert await office.store.pending_asks() == []
    assert office.resolutions() == {FIRST: "denied"}


async def test_an_ask_that_cannot_be_stored_fails_its_run_and_is_not_shown():
    office = Office(FaultyStore(MemoryStore("b1"), [StoreFault(of=(AskOpened,), error=DiskFull)]))
    with pytest.raises(DiskFull):
        await office.permit()(WANTED)
    assert (office.told, office.permissions.pending) == ([], ())


async def test_a_slow_store_makes_an_ask_late_and_nothing_else():
    store = FaultyStore(MemoryStore("b1"), [StoreFault(of=(AskOpened,))])
    office = Office(store)
    async with trio.open_nursery() as nursery:
        office.want(nursery)
        await trio.sleep(3600)
        assert (office.told, office.permissions.pending) == ([], ())
        store.heal()
        await wait_all_tasks_blocked()
        office.permissions.answer(FIRST, DENY)
    assert office.resolutions() == {FIRST: "denied"}


async def test_a_cancel_while_an_ask_is_stored_leaves_nothing_waiting():
    """The row may land all the same; then it is resolved after that."""
    store = FaultyStore(MemoryStore("b1"), [StoreFault(of=(AskOpened,), moment=Moment.AFTER)])
    office = Office(store)
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
        await wait_all_tasks_blocked()
        call.cancel()
    store.heal()
    assert await store.pending_asks() == []
    assert office.resolutions() == {FIRST: "withdrawn"}
    assert office.told == []


async def test_asks_that_a_crash_left_waiting_are_withdrawn_at_the_next_start():
    store = MemoryStore("b1")
    office = Office(FaultyStore(store))
    async with trio.open_nursery() as nursery:
        office.want(nursery)
        await wait_all_tasks_blocked()
        office.question(nursery, {"questions": [YES_NO]}, "c2")
        await wait_all_tasks_blocked()
        left = store.reopened("b2")
        nursery.cancel_scope.cancel()
    after = Office(FaultyStore(left))
    orphans = await withdraw_orphans(after.store, after.log.publish, TrioClock())
    assert [orphan.kind for orphan in orphans] == ["permission", "question"]
    assert after.told == ["withdrawn c1", f"settled {orphans[1].id}"]
    assert await left.pending_asks() == []
    assert await withdraw_orphans(after.store, after.log.publish, TrioClock()) == ()
    assert len(after.store.committed(AskResolved)) == 2


YES_NO = {"type": "yes_no", "question": "Go on?", "description": "It takes an hour."}


# ── Nobody there ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("L16")
async def test_an_ask_is_given_up_when_nobody_is_there_and_the_model_is_told():
    office = Office(patience=30.0)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
    assert trio.current_time() - began == 30
    assert call.result == "Permission denied: no client was connected for 30 seconds"
    assert call.error.result.stop_turn
    assert office.told == ["asked c1", "request c1", "denied c1"]
    assert office.resolutions() == {FIRST: "unattended"}
    assert not office.permissions.answer(FIRST, ALLOW)


async def test_an_ask_waits_for_whoever_is_there():
    office = Office(patience=30.0)
    async with trio.open_nursery() as nursery:
        with office.attendance.present():
            call = office.want(nursery)
            await trio.sleep(80_000)
            assert office.permissions.answer(FIRST, ALLOW)
    assert call.result == "allowed"


async def test_somebody_who_comes_in_time_can_answer():
    office = Office(patience=30.0)
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
        await trio.sleep(29)
        with office.attendance.present():
            await trio.sleep(3600)
        await trio.sleep(29)
        assert office.permissions.answer(FIRST, ALLOW)
    assert call.result == "allowed"


@pytest.mark.item("F21")
async def test_what_no_one_can_answer_is_refused_at_once_and_waits_if_a_person_is_there():
    office = Office(patience=30.0)
    with office.attendance.present():  # the stream of the run's own client
        assert await office.verdict(interactive=False) == UNANSWERED
    assert (office.told, office.opened()) == (["asked c1", "denied c1"], [])
    office.attendance.set_people(1)
    async with trio.open_nursery() as nursery:
        call = office.want(nursery, interactive=False)
        await trio.sleep(1000)
        assert office.permissions.answer(office.permissions.pending[0].id, ALLOW)
        await wait_all_tasks_blocked()
        assert call.result == "allowed"
        call = office.want(nursery, interactive=False)
        await wait_all_tasks_blocked()
        office.attendance.set_people(0)
    assert call.result == UNANSWERED


# ── At every checkpoint ─────────────────────────────────────────────────────────────────────────


async def ask_with(office, faults):
    """Ask with faults at the checkpoints of the asking; somebody allows it once it waits."""

    async def allow():
        await wait_all_tasks_blocked()
        office.permissions.answer(FIRST, ALLOW)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(allow)
        try:
            await faults.drive(office.permit()(WANTED))
        except OSError:
            return False
        return True


async def test_a_failure_at_any_checkpoint_leaves_no_ask_behind():
    clean = CheckpointFaults()
    assert await ask_with(Office(), clean)
    assert clean.count >= 3
    for k in range(clean.count):
        office, fault = Office(), Fault(k, Raise(OSError("gone")))
        assert await ask_with(office, CheckpointFaults([fault])) is not fault.fired
        assert office.permissions.pending == ()
        assert await office.store.pending_asks() == []
        if office.told:
            assert settled(office) in {"granted", "withdrawn"}


# ── Under every schedule ────────────────────────────────────────────────────────────────────────


async def soon(*actions):
    """Perform each action as a task of its own, so that the explorer can place it anywhere."""
    done = {}

    async def act(index, action):
        await trio.lowlevel.checkpoint()
        done[index] = action()

    async with trio.open_nursery() as nursery:
        for index, action in enumerate(actions):
            nursery.start_soon(act, index, action)
    return tuple(done[index] for index in range(len(actions)))


def settled(office, call="c1"):
    """The one word that settled a request; there must be one."""
    words = [word for word in office.told if word.endswith(f" {call}")]
    [last] = [word.split()[0] for word in words if word.split()[0] not in {"asked", "request"}]
    assert words[0] == f"asked {call}"
    return last


async def two_answers():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
        await wait_all_tasks_blocked()
        first, second = await soon(
            partial(office.permissions.answer, FIRST, SESSION),
            partial(office.permissions.answer, FIRST, DENY),
        )
    assert first != second, "both won, or neither"
    assert settled(office) == ("granted" if first else "denied")
    assert call.result == ("allowed" if first else DENIED)
    assert len(office.permissions.grants) == first, "a losing answer was remembered"
    assert office.resolutions() == {FIRST: "granted" if first else "denied"}
    return first


async def answer_against_cancel():
    """A cancel and an answer: whichever comes first counts, to the very step."""
    office, order = Office(), []
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
        await wait_all_tasks_blocked()

        def answer():
            order.append("answer")
            return office.permissions.answer(FIRST, SESSION)

        def cancel():
            order.append("cancel")
            call.cancel()

        resolved, _ = await soon(answer, cancel)
    assert resolved is (order[0] == "answer")
    assert settled(office) == ("granted" if resolved else "withdrawn")
    assert len(office.permissions.grants) == resolved
    assert office.resolutions() == {FIRST: "granted" if resolved else "withdrawn"}
    assert office.permissions.pending == ()
    return resolved, call.result


async def cancel_at_any_time():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
        await soon(call.cancel)
    assert call.result is None
    assert office.permissions.pending == ()
    assert await office.store.pending_asks() == []
    if office.told:
        assert settled(office) == "withdrawn"
    return tuple(office.told)


async def revoke_against_ask():
    """After a revocation nothing is granted by what was revoked."""
    office, order = Office(), []
    await granted(office, GrantScope.PROJECT)
    [grant] = office.permissions.grants
    async with trio.open_nursery() as nursery:

        def revoke():
            order.append("revoked")
            return office.permissions.revoke(grant.id)

        call = office.want(nursery, "c2")
        assert await soon(revoke) == (True,)
        await wait_all_tasks_blocked()
        if call.result is None:
            assert office.pending == ["c2"]
            office.permissions.answer(office.permissions.pending[0].id, DENY)
    assert settled(office, "c2") == ("granted" if call.result == "allowed" else "denied")
    return call.result


async def deadline_against_answer():
    """An answer comes while the last one leaves, and with that the end of all patience."""
    office = Office(patience=0.0)
    office.attendance.arrive()
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
        await wait_all_tasks_blocked()
        resolved, _ = await soon(
            partial(office.permissions.answer, FIRST, ALLOW), office.attendance.leave
        )
    assert (call.result == "allowed") is resolved
    assert settled(office) == ("granted" if resolved else "denied")
    assert office.resolutions() == {FIRST: "granted" if resolved else "unattended"}
    return resolved


async def arrival_against_deadline():
    """Somebody comes while the last one leaves: in time, or too late and then for good."""
    office = Office(patience=0.0)
    office.attendance.arrive()
    async with trio.open_nursery() as nursery:
        call = office.want(nursery)
        await wait_all_tasks_blocked()
        await soon(office.attendance.leave, office.attendance.arrive)
        await wait_all_tasks_blocked()
        assert office.permissions.answer(FIRST, ALLOW) is (call.result is None)
    word = settled(office)
    assert (call.result == "allowed") is (word == "granted")
    return word


SCENARIOS = {
    two_answers: {True, False},
    answer_against_cancel: {(True, "allowed"), (False, None)},
    cancel_at_any_time: {(), ("asked c1", "request c1", "withdrawn c1")},
    revoke_against_ask: {"allowed", DENIED},
    deadline_against_answer: {True, False},
    arrival_against_deadline: {"granted", "denied"},
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_asks_keep_their_promises_under_every_schedule(scenario, report_exploration):
    found = explore(scenario, deviations=3, limit=2000)
    report_exploration(found)
    assert set(found.outcomes) == SCENARIOS[scenario]
