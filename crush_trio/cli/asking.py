"""The asks of a workspace that somebody at this terminal may answer.

They are shown one at a time, the oldest first. Anybody else may answer too, so one may be settled
while it is on the screen. A key that was pressed before its question could be read is no answer to
it: for a moment after a question appears, keys mean nothing.
"""

from collections import deque
from typing import Final

from attrs import define, field
from rich.text import Text

from crush_trio.cli.conversation import Conversation
from crush_trio.cli.dialogs import (
    Allow,
    Answer,
    Deny,
    Dialog,
    PermissionDialog,
    QuestionDialog,
    Refuse,
    Reply,
    dialog_for,
    told,
)
from crush_trio.cli.keys import Key
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.ids import AskId

READING_TIME: Final = 0.25
"""Seconds for which a new question takes no answer."""


@define(eq=False)
class Asking:
    """What waits for an answer. *conversation* is where questions and answers are shown."""

    conversation: Conversation = field(repr=False)
    _waiting: deque[Dialog] = field(factory=deque, init=False)
    _since: float | None = field(default=None, init=False)
    """When the first of them was first seen on the screen."""
    _answered: set[AskId] = field(factory=set, init=False)

    @property
    def dialog(self) -> Dialog | None:
        """What is being asked now."""
        return self._waiting[0] if self._waiting else None

    def ask(self, request: PermissionRequest | QuestionRequest) -> None:
        """Ask this too, unless it is being asked."""
        known = {dialog.request.id for dialog in self._waiting} | self._answered
        if request.id not in known:
            self._waiting.append(dialog_for(request))
            if len(self._waiting) == 1:
                self._show()

    def settle(self, ask_id: AskId, *, granted: bool = False) -> None:
        """Ask this no longer; if nobody here has answered it, say so."""
        dialog = next((each for each in self._waiting if each.request.id == ask_id), None)
        if dialog is None:
            return
        if dialog is self.dialog and ask_id not in self._answered:
            verdict = "allowed" if granted else "settled"
            self.conversation.note(Text(f"({verdict} elsewhere)", "dim"))
        self._drop(dialog)

    def keep(self, ids: set[AskId]) -> None:
        """Ask nothing but *ids* any longer: that is all that waits."""
        for dialog in list(self._waiting):
            if dialog.request.id not in ids:
                self.settle(dialog.request.id)

    def seen(self, now: float) -> None:
        """Note that the screen shows what is asked."""
        if self.dialog is not None and self._since is None:
            self._since = now

    def press(self, key: Key, now: float) -> tuple[Dialog, Answer] | None:
        """Give a key to the question on the screen; return the answer that it completes."""
        dialog = self.dialog
        if dialog is None or self._since is None or now - self._since < READING_TIME:
            return None
        answer = dialog.press(key)
        if answer is None:
            return None
        self._answered.add(dialog.request.id)
        self.conversation.note(told(answer))
        self._drop(dialog)
        return dialog, answer

    def _drop(self, dialog: Dialog) -> None:
        first = dialog is self.dialog
        self._waiting.remove(dialog)
        if first:
            self._show()

    def _show(self) -> None:
        self._since = None
        if self.dialog is not None:
            self.conversation.note(self.dialog.body())


async def send_answer(workspace: RemoteWorkspace, dialog: Dialog, answer: Answer) -> bool:
    """Send an answer; return whether it was the one that counted."""
    match dialog, answer:
        case PermissionDialog(request=request), Allow(scope=scope):
            return await workspace.permissions.grant(request, scope)
        case PermissionDialog(request=request), Deny() | Refuse():
            return await workspace.permissions.deny(request)
        case QuestionDialog(request=batch), Reply(responses=responses):
            return await workspace.questions.answer(batch.id, responses)
        case QuestionDialog(request=batch), Deny() | Refuse():
            return await workspace.questions.cancel(batch.id)
    raise AssertionError(f"{answer} is no answer to {dialog}")
