"""Contract F.1: permissions, as the tools, the clients and the store see them.

Where the contract marks a weakness (L15, L16, L24, L46) the better design is what is tested. The
routes are in `tests/server/routes/test_asks.py`, races in `tests/agent/asks/test_permissions.py`.
"""

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.asks.permit import DENIED
from crush_trio.errors import PermissionActionInvalid
from crush_trio.wire.asks import PermissionAction, PermissionMode, PermissionRequest
from crush_trio.wire.ids import AskId, SessionId, ToolCallId
from tests.agent.asking import ROOT, WANTED, Office, wanted

ALLOW, SESSION, DENY = PermissionAction.ALLOW, PermissionAction.ALLOW_SESSION, PermissionAction.DENY
FIRST, SECOND = AskId("ask-1"), AskId("ask-2")


async def asked(nursery, office, call="c1", **more):
    """Ask, and return the call once it waits."""
    calling = office.want(nursery, call, **more)
    await wait_all_tasks_blocked()
    assert calling.result is None
    return calling


async def allowed_for_session(office, **more):
    async with trio.open_nursery() as nursery:
        await asked(nursery, office, **more)
        [request] = office.permissions.pending
        assert office.permissions.answer(request.id, SESSION)


# ── The rules, in their order ───────────────────────────────────────────────────────────────────


@pytest.mark.item("F1")
async def test_one_answer_for_the_session_covers_the_files_of_one_directory(tmp_path):
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    office = Office(directory=tmp_path)
    await allowed_for_session(office, wanted=wanted(path=tmp_path / "one"))
    deny = {"policy": PermissionMode.DENY}
    for path in (tmp_path / "two", tmp_path):
        assert await office.verdict(wanted=wanted(path=path), **deny) == "allowed"
    assert await office.verdict(wanted=wanted(path=tmp_path / "missing"), **deny) != "allowed"


@pytest.mark.item("F1")
async def test_a_dot_is_the_working_directory():
    office = Office()
    async with trio.open_nursery() as nursery:
        await asked(nursery, office, wanted=wanted(path=ROOT / "."))
        assert office.permissions.pending[0].path == str(ROOT)
        nursery.cancel_scope.cancel()


@pytest.mark.item("F7")
async def test_skipping_asks_nobody_and_says_nothing():
    office = Office()
    office.permissions.skip = True
    assert await office.verdict() == "allowed"
    assert (office.told, office.opened()) == ([], [])


@pytest.mark.item("F7")
async def test_skipping_affects_later_requests_only():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office)
        office.permissions.skip = True
        await wait_all_tasks_blocked()
        assert call.result is None
        assert await office.verdict("c2") == "allowed"
        office.permissions.skip = False
        assert office.permissions.answer(FIRST, DENY)
    assert call.result == DENIED
    assert await office.verdict(policy=PermissionMode.DENY) != "allowed"


@pytest.mark.parametrize("entry", ["bash", "bash:execute"])
async def test_the_allow_list_is_read_anew_for_each_request(entry):
    office = Office()
    office.allowed.append(entry)
    assert await office.verdict() == "allowed"
    assert office.told == []
    office.allowed.clear()
    assert await office.verdict(policy=PermissionMode.DENY) != "allowed"


@pytest.mark.item("F8")
async def test_what_a_hook_approved_is_for_one_call_and_no_other():
    office = Office()
    permit = office.permit("c1")
    permit.approve()
    await permit(WANTED)
    await permit(WANTED)
    assert office.told == ["granted c1", "granted c1"]
    async with trio.open_nursery() as nursery:
        await asked(nursery, office, "c1", session="t")
        nursery.cancel_scope.cancel()


@pytest.mark.item("F9")
async def test_a_session_can_be_approved_as_a_whole_and_no_other_is():
    office = Office()
    office.permissions.auto_approve(SessionId("s"))
    assert await office.verdict() == "allowed"
    assert office.told == ["asked c1", "granted c1"]
    assert office.opened() == []
    async with trio.open_nursery() as nursery:
        await asked(nursery, office, "c2", session="m$$c1")
        nursery.cancel_scope.cancel()


@pytest.mark.item("F7")
async def test_a_remembered_grant_is_shown_as_asked_and_granted_without_a_request():
    office = Office()
    await allowed_for_session(office)
    told = len(office.told)
    assert await office.verdict("c2") == "allowed"
    assert office.told[told:] == ["asked c2", "granted c2"]
    assert len(office.opened()) == 1


@pytest.mark.item("L24")
async def test_what_a_rule_settles_does_not_wait_behind_a_person_who_thinks():
    office = Office()
    await allowed_for_session(office)
    office.permissions.auto_approve(SessionId("t"))
    async with trio.open_nursery() as nursery:
        await asked(nursery, office, "slow", wanted=wanted(action="kill"))
        with trio.fail_after(1):
            assert await office.verdict("c2") == "allowed"
            assert await office.verdict("c3", session="t") == "allowed"
        nursery.cancel_scope.cancel()


@pytest.mark.item("L24")
async def test_any_number_may_wait_and_each_is_answered_for_itself():
    office = Office()
    async with trio.open_nursery() as nursery:
        calls = [await asked(nursery, office, name) for name in ("c1", "c2", "c3")]
        assert office.pending == ["c1", "c2", "c3"]
        assert office.permissions.answer(SECOND, ALLOW)
        await wait_all_tasks_blocked()
        assert [call.result for call in calls] == [None, "allowed", None]
        assert office.pending == ["c1", "c3"]
        nursery.cancel_scope.cancel()


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F2")
async def test_allow_is_for_once():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office)
        assert office.permissions.answer(FIRST, ALLOW)
    assert call.result == "allowed"
    assert office.permissions.grants == ()
    async with trio.open_nursery() as nursery:
        await asked(nursery, office, "c2")
        nursery.cancel_scope.cancel()


@pytest.mark.item("F2", "F3")
@pytest.mark.parametrize("loser", PermissionAction)
async def test_the_first_answer_wins_and_a_later_one_has_no_effect(loser):
    office = Office()
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office)
        assert office.permissions.answer(FIRST, DENY)
        assert not office.permissions.answer(FIRST, loser)
    assert call.result == DENIED
    assert office.permissions.grants == ()
    assert office.told == ["asked c1", "request c1", "denied c1"]
    assert not office.permissions.answer(FIRST, loser)


@pytest.mark.item("F2")
async def test_an_answer_to_what_nobody_asked_settles_nothing():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office)
        assert not office.permissions.answer(AskId("other"), ALLOW)
        await wait_all_tasks_blocked()
        assert call.result is None
        nursery.cancel_scope.cancel()


@pytest.mark.item("F2")
def test_there_are_three_answers():
    assert {action.value for action in PermissionAction} == {"allow", "allow_session", "deny"}
    assert str(PermissionActionInvalid("perhaps")) == "invalid permission action: perhaps"


@define(eq=False)
class Witness:
    """Looks around whenever something is published."""

    office: Office
    seen: list[tuple[str, int, list[str]]] = field(factory=list)

    def publish(self, event):
        self.office.log.publish(event)
        grants = len(self.office.permissions.grants)
        self.seen.append((self.office.told[-1], grants, self.office.pending))


@pytest.mark.item("F4")
async def test_an_answer_is_remembered_then_told_then_given():
    office = Office()
    witness = Witness(office)
    office.permissions.publish = witness.publish
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office)
        office.permissions.answer(FIRST, SESSION)
        assert witness.seen[-1] == ("granted c1", 1, ["c1"]), "remembered, and not yet let go"
        assert office.pending == []
    assert call.result == "allowed"
    assert [word for word, *_ in witness.seen] == ["asked c1", "request c1", "granted c1"]


@pytest.mark.item("F5")
async def test_a_denial_stops_the_turn_and_shows_what_did_not_happen():
    office = Office()
    diff = {"diff": "-old\n+new", "additions": 1}
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office, wanted=wanted(denied=diff))
        office.permissions.answer(FIRST, DENY)
    result = call.error.result
    assert result.content == "User denied permission"
    assert (result.is_error, result.stop_turn) == (True, True)
    assert result.metadata == {**diff, "permission_refused": "denied"}


@pytest.mark.item("F5")
async def test_a_denial_with_a_reason_tells_the_model_and_the_clients_and_the_turn_goes_on():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office)
        office.permissions.answer(FIRST, DENY, reason="use make")
    result = call.error.result
    assert result.content == "User denied permission: use make"
    assert (result.is_error, result.stop_turn, result.by_person) == (True, False, True)
    assert result.metadata == {"permission_refused": "denied"}
    assert office.notices[-1].reason == "use make"


@pytest.mark.item("F6", "L15", "A20")
async def test_a_cancelled_run_withdraws_its_request_and_everybody_is_told():
    office = Office()
    async with trio.open_nursery() as nursery:
        call = await asked(nursery, office)
        other = await asked(nursery, office, "c2", run="r2")
        call.cancel()
        assert not office.permissions.answer(FIRST, SESSION), "an answer after the cancel counted"
        assert office.pending == ["c2"]
        await wait_all_tasks_blocked()
        assert office.told[-1] == "withdrawn c1"
        assert office.permissions.grants == ()
        assert office.resolutions() == {FIRST: "withdrawn"}
        assert office.permissions.answer(SECOND, ALLOW)
    assert (call.result, other.result) == (None, "allowed")


@pytest.mark.item("F10", "L47")
async def test_a_request_says_all_that_a_person_needs():
    office = Office()
    async with trio.open_nursery() as nursery:
        await asked(nursery, office)
        assert office.permissions.pending == (
            PermissionRequest(
                id=FIRST,
                session_id=SessionId("s"),
                tool_call_id=ToolCallId("c1"),
                tool_name="bash",
                description="Execute command: ls",
                action="execute",
                params={"command": "ls"},
                path=str(ROOT),
                covers=("= ls",),
            ),
        )
        nursery.cancel_scope.cancel()


@pytest.mark.item("L46")
async def test_a_grant_is_of_what_was_asked():
    office = Office()
    await allowed_for_session(office)
    [grant] = office.permissions.grants
    assert (grant.id, grant.session_id, grant.run_id) == (FIRST, "s", "r")
    assert (grant.tool_name, grant.action, grant.path) == ("bash", "execute", str(ROOT))
