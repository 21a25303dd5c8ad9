"""`TrustQuestion`: asks the user, before the first prompt, whether to trust what a project wants.

The question is a permission request like any other, so every client can show and answer it. The rules
of permissions do not settle it: neither skip mode nor the policy of a submission trusts a project. "Once"
counts while the workspace is open, "for the session" trusts the directory for good, and a denial counts
until the files change.

One run at a time asks, and others that begin meanwhile wait for the answer. If the run that asks is
cancelled, its request is withdrawn and the next run asks. A run whose client cannot answer does not wait:
the project's wishes are ignored, and a notice of the run says so.
"""

import logging
from typing import Final

import trio
from attrs import define, field

from crush_trio.agent.asks.attendance import Attendance
from crush_trio.agent.asks.pending import Resolution
from crush_trio.agent.asks.permissions import Permissions
from crush_trio.clock import IdSource
from crush_trio.config.errors import printable
from crush_trio.config.live import Configuration
from crush_trio.config.trust.answers import TrustAnswer
from crush_trio.config.trust.wishes import Wishes
from crush_trio.errors import CrushError
from crush_trio.runtime.run import Run
from crush_trio.wire.asks import TRUST_TOOL, GrantScope, PermissionMode, PermissionRequest
from crush_trio.wire.ids import AskId, ToolCallId
from crush_trio.wire.runs import RunKind

log = logging.getLogger(__name__)

LINES: Final = 8
"""How many wishes of each kind the description lists."""

LISTED: Final = 100
"""How many wishes the parameters of the request list."""

PATH_LIMIT: Final = 1000
"""The most bytes of the directory in the description."""

_IGNORED: Final = (
    "This project is not trusted, so parts of its configuration were ignored. It wants to {summary}. "
    "To trust it: {command}"
)
_NOT_APPLIED: Final = "The answer about trusting this project could not be applied: {error}"

_LASTING: Final = {GrantScope.SESSION, GrantScope.PROJECT}


@define(eq=False, kw_only=True)
class TrustQuestion:
    """Asks whether the project of one workspace is trusted."""

    config: Configuration = field(repr=False)
    permissions: Permissions = field(repr=False)
    attendance: Attendance = field(repr=False)
    ids: IdSource = field(repr=False)
    _asking: trio.Lock = field(factory=trio.Lock, init=False, repr=False)
    """Held by the run that asks, across its wait: there is one question, whichever run asks it."""

    def concerns(self, run: Run) -> bool:
        """Whether *run* must call `settle` before it begins: the project has undecided wishes."""
        wishes = self.config.current.wishes
        return run.kind is RunKind.PROMPT and wishes is not None

    async def settle(self, run: Run) -> None:
        """Ask whether to trust the project, or add a notice to *run* if that cannot be asked.

        When it returns, the current configuration is the one that the answer leads to.
        """
        await trio.lowlevel.checkpoint()
        try:
            wishes = (await self.config.refresh_wishes()).wishes
            if wishes is not None and self._answerable(run):
                async with self._asking:
                    wishes = await self._asked(run)
        except CrushError as error:  # the project stays untrusted, and the run goes on without it
            log.warning("trust.not_applied", extra={"error": str(error)})
            run.accepted.add_notice(_NOT_APPLIED.format(error=error))
            return
        if wishes is not None and not wishes.declined:
            log.warning("trust.ignored", extra={"directory": str(wishes.directory)})
            run.accepted.add_notice(ignored_notice(wishes))

    def _answerable(self, run: Run) -> bool:
        """Whether a person can answer: a client of the run is connected, and the run may ask."""
        submission = run.submission
        denies = submission.permissions.mode is PermissionMode.DENY
        return submission.interactive and not denies and self.attendance.streams > 0

    async def _asked(self, run: Run) -> Wishes | None:
        """Ask until the answer counts for the present files; return the wishes that are left."""
        while True:
            wishes = (await self.config.refresh_wishes()).wishes
            if wishes is None or wishes.declined or not self._answerable(run):
                return wishes
            answer = await self._ask(run, wishes)
            if answer is None:
                return wishes
            if await self.config.answer_wishes(wishes, answer):
                return self.config.current.wishes

    async def _ask(self, run: Run, wishes: Wishes) -> TrustAnswer | None:
        """Raise the request and return its answer; None if no client was left to answer.

        There is no checkpoint after the answer: a cancel of the run cannot lose it.
        """
        request = trust_request(run, wishes, AskId(self.ids.new()))
        permit = self.permissions.permit_for(
            session_id=run.session_id,
            run_id=run.id,
            tool_call_id=request.tool_call_id,
            tool_name=TRUST_TOOL,
        )
        match (await self.permissions.ask(permit, request)).resolution:
            case Resolution.GRANTED:
                lasting = any(
                    grant.id == request.id and grant.scope in _LASTING
                    for grant in self.permissions.grants
                )
                self.permissions.revoke(request.id)  # trust is no grant: no later request needs it
                return TrustAnswer.ALWAYS if lasting else TrustAnswer.ONCE
            case Resolution.DENIED:
                return TrustAnswer.NO
        return None


def ignored_notice(wishes: Wishes) -> str:
    """Return what a run says that could not ask: what was ignored, and how to trust the project."""
    return _IGNORED.format(summary=wishes.summary, command=wishes.command)


def trust_request(run: Run, wishes: Wishes, ask_id: AskId) -> PermissionRequest:
    """Return the permission request that asks whether to trust a project with *wishes*."""
    lines = "\n".join(f"- {line}" for line in wishes.lines(LINES))
    return PermissionRequest(
        id=ask_id,
        session_id=run.session_id,
        tool_call_id=ToolCallId(f"trust-{ask_id}"),
        tool_name=TRUST_TOOL,
        action=TRUST_TOOL,
        description=(
            f"Trust the configuration files of this project? They want to:\n{lines}\n"
            "Allow: while this workspace is open. Allow for session: always trust "
            f"{printable(str(wishes.directory), PATH_LIMIT)} and everything below it. "
            "Deny: until the files change."
        ),
        params={
            "directory": str(wishes.directory),
            "wishes": [
                {
                    "kind": wish.kind.value,
                    "file": str(wish.file),
                    "key": wish.key,
                    "text": wish.text,
                }
                for wish in wishes.items[:LISTED]
            ],
        },
        path=str(wishes.directory),
    )
