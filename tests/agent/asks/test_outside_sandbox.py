"""Permission to leave the sandbox is always asked; what the configuration allows is not."""

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.tools.base import LEAVE_SANDBOX
from crush_trio.wire.asks import GrantScope, PermissionAction, PermissionMode, PermissionPolicy
from crush_trio.wire.ids import AskId, SessionId
from tests.agent.asking import WANTED, Office

OUTSIDE = evolve(WANTED, action=LEAVE_SANDBOX, always=True)


@pytest.mark.parametrize("how", ["allowed tool", "policy", "list", "hook", "session", "grant"])
async def test_nothing_but_a_person_lets_a_command_out(how):
    office = Office(allowed=["bash"] if how == "allowed tool" else [])
    listed = PermissionPolicy(allow_list=("bash", f"bash:{LEAVE_SANDBOX}"))
    policy = {"policy": PermissionMode.ALLOW, "list": listed}.get(how)
    async with trio.open_nursery() as nursery:
        if how == "session":
            office.permissions.auto_approve(SessionId("s"))
        if how == "grant":
            office.want(nursery, wanted=OUTSIDE)
            await wait_all_tasks_blocked()
            office.permissions.answer(AskId("ask-1"), PermissionAction.ALLOW, GrantScope.PROJECT)
            assert office.permissions.grants == ()
        permit = office.permit("c2", **({} if policy is None else {"policy": policy}))
        if how == "hook":
            permit.approve()
        nursery.start_soon(permit, OUTSIDE)
        await wait_all_tasks_blocked()
        assert office.pending == ["c2"]
        [request] = office.permissions.pending
        assert office.permissions.answer(request.id, PermissionAction.ALLOW)


async def test_a_run_that_may_not_ask_stays_inside_and_skip_mode_asks_nothing():
    office = Office()
    assert "can ask no one" in await office.verdict(policy=PermissionMode.DENY, wanted=OUTSIDE)
    office.permissions.skip = True
    assert await office.verdict(wanted=OUTSIDE) == "allowed"


async def test_what_the_sandbox_holds_and_the_user_allows_is_not_asked():
    office = Office()
    wanted = evolve(WANTED, allowed=True)
    assert await office.verdict(wanted=wanted) == "allowed"
    assert await office.verdict(policy=PermissionMode.DENY, wanted=wanted) == "allowed"
    assert office.told == []


@pytest.mark.parametrize("command", ["echo x > .git/hooks/pre-commit", "echo {} > crush.json"])
async def test_what_is_always_asked_is_asked_also_if_commands_are_allowed(command):
    office = Office()
    params = {**(WANTED.params or {}), "command": command}
    wanted = evolve(WANTED, allowed=True, params=params)
    assert "can ask no one" in await office.verdict(policy=PermissionMode.DENY, wanted=wanted)
