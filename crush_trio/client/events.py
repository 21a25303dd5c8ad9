"""What a workspace tells those who watch it.

Most events are the wire's own `Envelope`: something was created, updated or deleted. Messages and runs
have classes of their own here, because the native stream says more about them. The rest is about the
stream itself.
"""

from typing import TypeAlias

from attrs import define, field, frozen

from crush_trio.client.growing import MessageView
from crush_trio.client.pieces import MessagePiece, is_older, pieces_between
from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.events import Envelope, EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.native import RunView


@define(eq=False)
class MessageEvent:
    """A message is new, has grown, or is gone.

    `message` is the whole message as of this event. It is put together when it is first asked for; a
    reader that prints an answer as it comes should ask for `pieces_since` instead, which costs as much
    as what is new.
    """

    change: EventType
    view: MessageView = field(repr=lambda view: view.id)
    _message: Message | None = field(default=None, init=False, repr=False)

    @property
    def message_id(self) -> MessageId:
        """Which message it is."""
        return self.view.id

    @property
    def session_id(self) -> SessionId:
        """The session that the message is in."""
        return self.view.head.session_id

    @property
    def role(self) -> Role:
        """Who speaks."""
        return self.view.head.role

    @property
    def finished(self) -> bool:
        """Whether the message is complete."""
        return self.view.finished

    @property
    def message(self) -> Message:
        """The whole message."""
        if self._message is None:
            self._message = self.view.message()
        return self._message

    def pieces_since(self, earlier: "MessageEvent | None") -> tuple[MessagePiece, ...]:
        """Return what happened to the message since an *earlier* event of it, or since its beginning.

        Keep the event you have seen last of each message, and give it here.
        """
        if earlier is None:
            return pieces_between(None, self.view)
        if is_older(self.view, than=earlier.view):
            return ()
        return pieces_between(earlier.view, self.view)


@frozen
class RunEvent:
    """A run is in a new state. The event of its ending comes once and is its last.

    The text of the answer is not in here: it is in the messages, and in what `RunHandle.wait` returns.
    """

    run: RunView


@frozen(eq=False, kw_only=True)
class Resynced:
    """Some events were missed. This is the state of now; replace by it whatever was known before.

    A run or a message that is not in here has ended, been finished or been deleted meanwhile. The
    endings of runs that were missed are events of their own, before this one or right after it. What
    else happened meanwhile is not told any more: a reader that shows sessions reads them anew.
    """

    runs: tuple[RunView, ...] = ()
    """Every run that has not ended."""
    permissions: tuple[PermissionRequest, ...] = ()
    """What waits for a yes or a no."""
    questions: tuple[QuestionRequest, ...] = ()
    """What waits for an answer."""
    views: tuple[MessageView, ...] = field(default=(), repr=False)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message that is not finished."""
        return tuple(view.message() for view in self.views)


@frozen
class Disconnected:
    """The connection is gone. Events continue where they stopped once there is another one."""

    reason: str


@frozen
class Reconnected:
    """There is a connection again. If something was missed, a `Resynced` follows."""


WorkspaceEvent: TypeAlias = (
    MessageEvent | RunEvent | Envelope | Resynced | Disconnected | Reconnected
)
"""Anything that a reader of a workspace's events is given."""
