"""Grants and real commands: what a person allowed for the session runs, and nothing else does."""

import pytest
import trio
from attrs import define, field

from crush_trio.tools.base import ToolError
from crush_trio.wire.asks import PermissionAction, PermissionMode, PermissionRequest
from tests.agent.asking import Call, Office
from tests.tools.shell_bench import open_shell_bench


@define(eq=False)
class Permit:
    """The permit of calls of `bash`; a person allows for the session while `present`."""

    office: Office
    present: bool = True
    asked: list = field(factory=list)

    async def __call__(self, wanted):
        policy = PermissionMode.ASK if self.present else PermissionMode.DENY
        shown = trio.Event()

        def publish(event):
            self.office.log.publish(event)
            if isinstance(event.entity, PermissionRequest):
                shown.set()

        self.office.permissions.publish = publish
        call = Call()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.perform, self.office.permit(policy=policy), wanted)
            if self.present:
                await self._allow(shown)
        if call.error:
            raise call.error

    async def _allow(self, shown):
        await shown.wait()
        [request] = self.office.permissions.pending
        self.asked.append(request.params["command"])
        assert self.office.permissions.answer(request.id, PermissionAction.ALLOW_SESSION)


@pytest.mark.item("F18", "F20")
@pytest.mark.slow
@pytest.mark.real_clock
async def test_touch_for_the_session_covers_touch_and_neither_rm_nor_git_nor_links(tmp_path):
    work, home = tmp_path / "work", tmp_path / "home"
    (work / ".git").mkdir(parents=True)
    home.mkdir()
    (work / "home").symlink_to(home)
    (work / "kept").write_text("precious")
    async with open_shell_bench(work) as bench:
        permit = bench.person = Permit(Office(directory=work))
        await bench.bash("touch one")
        permit.present = False
        await bench.bash("touch two && echo done | cat")
        for command in (
            "rm -rf kept",
            "touch three; rm -rf kept",
            "touch $(rm -rf kept)",
            "sh -c 'rm -rf kept'",
            "touch .git/config",
            "touch home/.profile_of_user",
            "cd home && touch x",
            "touch four > kept",
            "env touch five",
            f"touch {home}/x",
            "touch two && echo done | tee kept",
        ):
            with pytest.raises(ToolError, match=r"^Permission denied"):
                await bench.bash(command)
    assert permit.asked == ["touch one"]
    assert sorted(path.name for path in work.iterdir()) == [".git", "home", "kept", "one", "two"]
    assert (work / "kept").read_text() == "precious"
    assert list(home.iterdir()) == []
    assert list((work / ".git").iterdir()) == []
