"""The question whether to trust a project: who asks it, how often, and what an answer does."""

from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.asks.trust import LISTED, TrustQuestion
from crush_trio.clock import CountingIds
from crush_trio.config.errors import ConfigNotWritten
from crush_trio.config.trust.answers import TrustAnswer
from crush_trio.config.trust.wishes import Wish, Wishes, WishKind
from crush_trio.runtime.outcome import Submission
from crush_trio.testing.explore import explore
from crush_trio.wire.asks import GrantScope, PermissionAction, PermissionMode, PermissionPolicy
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunKind
from tests.agent.asking import Office

ALLOW, SESSION, DENY = PermissionAction.ALLOW, PermissionAction.ALLOW_SESSION, PermissionAction.DENY
ROOT = Path("/srv/the project")


def wanting(*kinds, digest="d1"):
    return Wishes(
        directory=ROOT,
        digest=digest,
        items=tuple(
            Wish(kind=kind, file=ROOT / "crush.json", key="k", text=f"do {kind}") for kind in kinds
        ),
    )


@define(eq=False)
class Config:
    """A configuration that is its wishes alone; `trusted` are the answers that were given."""

    wishes: Wishes | None = field(factory=lambda: wanting(WishKind.MODEL))
    given: list = field(factory=list)
    failure: Exception | None = None

    @property
    def current(self):
        return self

    async def refresh_wishes(self):
        await trio.lowlevel.checkpoint()
        return self

    async def answer_wishes(self, wishes, answer):
        self.given.append(answer)  # before the first checkpoint, as the real one queues it
        if self.failure is not None:
            raise self.failure
        if wishes != self.wishes:
            await trio.lowlevel.checkpoint()
            return False
        self.wishes = evolve(wishes, declined=True) if answer is TrustAnswer.NO else None
        await trio.lowlevel.checkpoint()
        return True


@define(eq=False)
class Runs:
    """Runs that begin in one workspace, each in a session and a task of its own."""

    config: Config = field(factory=Config)
    office: Office = field(factory=Office)
    trust: TrustQuestion = field(init=False)

    def __attrs_post_init__(self):
        self.trust = TrustQuestion(
            config=self.config,
            permissions=self.office.permissions,
            attendance=self.office.attendance,
            ids=CountingIds("trust"),
        )

    def begin(self, nursery, name="r1", **submission):
        run = BegunRun(name, **submission)
        nursery.start_soon(partial(run.begin, self.trust), name=name)
        return run

    def answer(self, action, scope=None):
        [request] = self.office.permissions.pending
        return self.office.permissions.answer(request.id, action, scope)


@define(eq=False, init=False)
class BegunRun:
    """A run as the question sees it."""

    id: RunId
    kind: RunKind
    submission: Submission
    notices: list
    scope: trio.CancelScope
    began: bool

    def __init__(self, name, kind=RunKind.PROMPT, **submission):
        self.id, self.kind, self.notices, self.began = RunId(name), kind, [], False
        self.submission = Submission(session_id=SessionId(f"s-{name}"), prompt="x", **submission)
        self.scope = trio.CancelScope()

    @property
    def session_id(self):
        return self.submission.session_id

    @property
    def accepted(self):
        return self

    def add_notice(self, text):
        self.notices.append(text)

    async def begin(self, trust):
        with self.scope:
            if trust.concerns(self):
                await trust.settle(self)
            self.began = True


# ── The request ─────────────────────────────────────────────────────────────────────────────────


async def test_the_request_says_in_words_what_the_project_wants():
    items = (WishKind.MODEL, WishKind.ENVIRONMENT)
    runs = Runs(Config(wanting(*items)))
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            runs.begin(nursery)
            await wait_all_tasks_blocked()
            [request] = runs.office.permissions.pending
            assert (request.tool_name, request.action, request.path) == (
                "trust",
                "trust",
                str(ROOT),
            )
            assert (request.session_id, request.tool_call_id) == ("s-r1", f"trust-{request.id}")
            assert "- do environment\n- do model\n" in request.description
            assert request.params == {
                "directory": str(ROOT),
                "wishes": [
                    {"kind": kind, "file": f"{ROOT}/crush.json", "key": "k", "text": f"do {kind}"}
                    for kind in items
                ],
            }
            runs.answer(DENY)


async def test_a_thousand_wishes_make_a_request_of_bounded_size():
    runs = Runs(Config(wanting(*[WishKind.HOOK] * 1000)))
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            runs.begin(nursery)
            await wait_all_tasks_blocked()
            [request] = runs.office.permissions.pending
            assert len(request.params["wishes"]) == LISTED
            assert "- run hooks: 992 more\n" in request.description
            runs.answer(DENY)


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("action", "scope", "given"),
    [
        (ALLOW, None, TrustAnswer.ONCE),
        (ALLOW, GrantScope.RUN, TrustAnswer.ONCE),
        (SESSION, None, TrustAnswer.ALWAYS),
        (ALLOW, GrantScope.PROJECT, TrustAnswer.ALWAYS),
        (DENY, None, TrustAnswer.NO),
    ],
)
async def test_an_answer_lets_the_run_begin_and_is_asked_for_once(action, scope, given):
    runs = Runs()
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            first = runs.begin(nursery)
            await wait_all_tasks_blocked()
            assert not first.began
            assert runs.answer(action, scope)
            await wait_all_tasks_blocked()
            second = runs.begin(nursery, "r2")
            await wait_all_tasks_blocked()
            assert (first.began, second.began) == (True, True)
    assert runs.config.given == [given]
    assert runs.office.permissions.grants == (), "trust is no permission for later requests"
    assert first.notices == second.notices == []
    call = "trust-trust-1"
    assert runs.office.told == [
        f"asked {call}",
        f"request {call}",
        f"{'denied' if action is DENY else 'granted'} {call}",
    ]


async def test_files_that_change_while_the_question_waits_are_asked_about_anew():
    runs = Runs()
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            run = runs.begin(nursery)
            await wait_all_tasks_blocked()
            runs.config.wishes = wanting(WishKind.HOOK, digest="d2")
            runs.answer(SESSION)
            await wait_all_tasks_blocked()
            assert not run.began
            assert "do hook" in runs.office.permissions.pending[0].description
            runs.answer(ALLOW)
    assert runs.config.given == [TrustAnswer.ALWAYS, TrustAnswer.ONCE]


async def test_an_answer_that_cannot_be_applied_is_said_and_the_run_goes_on():
    runs = Runs(Config(failure=ConfigNotWritten("/home: No space left on device")))
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            run = runs.begin(nursery)
            await wait_all_tasks_blocked()
            runs.answer(SESSION)
    assert run.began
    [notice] = run.notices
    assert "could not be applied" in notice
    assert "No space left" in notice


# ── Several runs ────────────────────────────────────────────────────────────────────────────────


async def test_a_herd_raises_one_request_and_all_wait_for_it():
    runs = Runs()
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            herd = [runs.begin(nursery, f"r{number}") for number in range(20)]
            alone = runs.begin(nursery, "script", interactive=False)
            await wait_all_tasks_blocked()
            assert len(runs.office.permissions.pending) == 1
            assert not any(run.began for run in herd)
            assert alone.began, "a run that cannot be answered does not wait"
            runs.answer(SESSION)
    assert all(run.began and not run.notices for run in herd)
    assert runs.config.given == [TrustAnswer.ALWAYS]


async def test_a_cancel_of_the_run_that_asked_leaves_the_question_to_the_others():
    runs = Runs()
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            first, second, third = (runs.begin(nursery, f"r{number}") for number in (1, 2, 3))
            await wait_all_tasks_blocked()
            [asked] = runs.office.permissions.pending
            asker = next(r for r in (first, second, third) if r.session_id == asked.session_id)
            asker.scope.cancel()
            await wait_all_tasks_blocked()
            [again] = runs.office.permissions.pending
            assert again.id != asked.id
            assert runs.answer(ALLOW)
    assert not asker.began
    assert sum(run.began for run in (first, second, third)) == 2
    assert f"withdrawn trust-{asked.id}" in runs.office.told
    assert runs.config.given == [TrustAnswer.ONCE]


def test_answer_and_cancel_together_lose_neither():
    """In every order an answer that was accepted is applied, and the other run begins."""

    async def cancel(run):
        run.scope.cancel()
        await trio.lowlevel.checkpoint()

    async def answer(runs, ask, accepted):
        accepted.append(runs.office.permissions.answer(ask, SESSION))
        await trio.lowlevel.checkpoint()

    async def scenario():
        runs, accepted = Runs(), []
        with runs.office.attendance.present():
            async with trio.open_nursery() as nursery:
                both = [runs.begin(nursery, name) for name in ("r1", "r2")]
                await wait_all_tasks_blocked()
                [request] = runs.office.permissions.pending
                asker, other = sorted(both, key=lambda run: run.session_id != request.session_id)
                nursery.start_soon(cancel, asker)
                nursery.start_soon(answer, runs, request.id, accepted)
                await wait_all_tasks_blocked()
                assert bool(runs.office.permissions.pending) is not accepted[0]
                if not accepted[0]:
                    assert runs.answer(SESSION), "the other run has asked"
        assert runs.config.given == [TrustAnswer.ALWAYS]
        assert other.began
        return accepted[0]

    assert set(explore(scenario).outcomes) == {True, False}


# ── No person to ask ────────────────────────────────────────────────────────────────────────────

DENYING = PermissionPolicy(mode=PermissionMode.DENY)


@pytest.mark.parametrize(
    ("streams", "submission"),
    [(0, {}), (1, {"interactive": False}), (1, {"permissions": DENYING})],
    ids=["no client", "not interactive", "policy"],
)
async def test_a_run_that_cannot_ask_ignores_the_wishes_and_says_how_to_trust(streams, submission):
    runs = Runs()
    for _ in range(streams):
        runs.office.attendance.arrive()
    async with trio.open_nursery() as nursery:
        run = runs.begin(nursery, **submission)
    [notice] = run.notices
    assert "It wants to choose models." in notice
    assert notice.endswith("To trust it: crush-trio trust '/srv/the project'")
    assert (runs.office.told, runs.config.given) == ([], [])


async def test_a_question_is_given_up_when_the_last_client_has_left_and_is_asked_again_later():
    runs = Runs(office=Office(patience=5))
    async with trio.open_nursery() as nursery:
        with runs.office.attendance.present():
            run = runs.begin(nursery)
            await wait_all_tasks_blocked()
    assert run.began
    assert "crush-trio trust" in run.notices[0]
    assert runs.config.given == [], "no answer is no denial"
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            runs.begin(nursery, "r2")
            await wait_all_tasks_blocked()
            assert runs.answer(ALLOW)


@pytest.mark.parametrize("how", ["skip", "allow", "allow list", "approved session"])
async def test_nothing_that_allows_tools_trusts_a_project(how):
    runs = Runs()
    policy = {
        "allow": PermissionPolicy(mode=PermissionMode.ALLOW),
        "allow list": PermissionPolicy(allow_list=("trust", "trust:trust")),
    }.get(how, PermissionPolicy())
    runs.office.allowed.append("trust")
    runs.office.permissions.skip = how == "skip"
    if how == "approved session":
        runs.office.permissions.auto_approve(SessionId("s-r1"))
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            run = runs.begin(nursery, permissions=policy)
            await wait_all_tasks_blocked()
            assert not run.began, "it is asked"
            runs.answer(DENY)
    assert runs.config.given == [TrustAnswer.NO]


async def test_declined_wishes_are_ignored_without_a_word():
    runs = Runs(Config(evolve(wanting(WishKind.MODEL), declined=True)))
    async with trio.open_nursery() as nursery:
        silent = runs.begin(nursery, interactive=False)
        with runs.office.attendance.present():
            asked = runs.begin(nursery, "r2")
            await wait_all_tasks_blocked()
    assert (silent.notices, asked.notices, runs.office.told) == ([], [], [])


@pytest.mark.parametrize("kind", [RunKind.TASK, RunKind.SUMMARIZE])
async def test_only_prompts_ask(kind):
    runs = Runs()
    with runs.office.attendance.present():
        async with trio.open_nursery() as nursery:
            run = runs.begin(nursery, kind=kind)
    assert (run.began, run.notices) == (True, [])
