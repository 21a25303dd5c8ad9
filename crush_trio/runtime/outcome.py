"""What a caller asks for, what a turn gives back, and how a run ended.

All three are values. An `Outcome` is made in one place (`runtime.run`), once per run.
"""

from collections.abc import Iterable

from attrs import field, frozen
from attrs.validators import deep_iterable, instance_of

from crush_trio.errors import PromptEmpty, PromptTooLong, SessionMissing
from crush_trio.events.facts import Event, Fact, MessageChange
from crush_trio.limits import DEFAULTS, SizeLimits, byte_size, shown_bytes
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.ids import NO_MESSAGE, MessageId, RunId, SessionId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState, WhenBusy, WhenUnclaimed

INTERRUPTED_BY_RESTART = "interrupted by restart"
CANCELLED_WHILE_ACTIVE = "run cancelled"


def _as_tuple(attachments: Iterable[Attachment]) -> tuple[Attachment, ...]:
    return tuple(attachments)


@frozen(kw_only=True)
class Submission:
    """What a caller sends: a prompt for a session, perhaps with a run id of the caller's own.

    A submission with a `run_id` always gets a turn of its own. One without may be folded into the
    turn that is running when it arrives, unless it is to outlive the clients, or says what it may do
    or what is to answer it: the turn that took it in might be another's.

    The policies say how to treat the submission, not what it is. They do not count when two
    submissions are compared, so the same prompt under the same run id is the same run, whatever
    policy the second attempt names; the first one's holds.
    """

    session_id: SessionId
    prompt: str = ""
    attachments: tuple[Attachment, ...] = field(default=(), converter=_as_tuple)
    run_id: RunId | None = None
    kind: RunKind = RunKind.PROMPT
    when_busy: WhenBusy = field(default=WhenBusy.ENQUEUE, eq=False)
    when_unclaimed: WhenUnclaimed = field(default=WhenUnclaimed.CANCEL, eq=False)
    permissions: PermissionPolicy = field(default=PermissionPolicy(), eq=False)
    interactive: bool = field(default=True, eq=False)
    """Whether the client that sent it shows what it is asked to a person (L30)."""
    model: SelectedModel | None = field(default=None, eq=False)
    """What is to answer, for this one run; None is what the workspace has selected when it begins."""

    def check(self, sizes: SizeLimits = DEFAULTS) -> None:
        """Raise unless there is something to run, not too much, and a session to run it in (A1).

        An image alone is no prompt: the model would not know what to do with it.
        """
        readable = self.prompt or any(a.mime_type.startswith("text/") for a in self.attachments)
        if self.kind.prompted and not readable:
            raise PromptEmpty
        if not self.session_id:
            raise SessionMissing
        size = byte_size(self.prompt)
        if size > sizes.prompt:
            raise PromptTooLong(f"it has {size:,} bytes, the limit is {shown_bytes(sizes.prompt)}")

    @property
    def foldable(self) -> bool:
        """Whether a running turn may absorb this: nobody waits for an ending of its own."""
        plain = (
            self.when_unclaimed is WhenUnclaimed.CANCEL
            and self.permissions == PermissionPolicy()
            and self.model is None
        )
        return plain and self.run_id is None and self.kind is RunKind.PROMPT


@frozen(kw_only=True)
class Completion:
    """What a turn returns: its last answer, and notices to publish together with the ending.

    The notices reach readers after the session has stopped being busy and before the ending,
    with nothing in between (D28).
    """

    message_id: MessageId = field(default=NO_MESSAGE, validator=instance_of(str))  # type: ignore[arg-type]  # a NewType
    text: str = field(default="", validator=instance_of(str))
    notices: tuple[Event, ...] = field(
        default=(), validator=deep_iterable(instance_of((Fact, MessageChange)))
    )


NOTHING_YET = Completion()


@frozen(kw_only=True)
class Outcome:
    """How a run ended. `error` may stand beside a cancellation: what the cancel interrupted (B3)."""

    state: RunState = field()
    message_id: MessageId = NO_MESSAGE
    text: str = ""
    error: str = ""
    title: str = ""
    """The heading of the error, for people; empty where there is nothing better than a default."""
    folded_into: RunId | None = None
    notices: tuple[Event, ...] = field(default=(), repr=False)

    @state.validator
    def _must_be_an_ending(self, _attribute: object, value: RunState) -> None:
        if not value.terminal:
            raise ValueError(f"{value} is not an ending")

    @classmethod
    def completed(cls, done: Completion) -> "Outcome":
        """The turn returned."""
        return cls(
            state=RunState.COMPLETED,
            message_id=done.message_id,
            text=done.text,
            notices=done.notices,
        )

    @classmethod
    def cancelled(cls, error: str = "", partial: Completion = NOTHING_YET) -> "Outcome":
        """Someone stopped the run; *partial* is what it had said until then."""
        return cls(
            state=RunState.CANCELLED,
            error=error,
            message_id=partial.message_id,
            text=partial.text,
        )

    @classmethod
    def errored(cls, error: str, partial: Completion = NOTHING_YET, title: str = "") -> "Outcome":
        """The turn failed, or could not begin."""
        return cls(
            state=RunState.ERRORED,
            error=error or "unknown error",
            title=title,
            message_id=partial.message_id,
            text=partial.text,
        )

    @classmethod
    def folded(cls, into: RunId) -> "Outcome":
        """Another run's turn took the prompt in."""
        return cls(state=RunState.FOLDED, folded_into=into)

    @classmethod
    def interrupted(cls) -> "Outcome":
        """The process died under the run; a later start found and ended it."""
        return cls(state=RunState.INTERRUPTED, error=INTERRUPTED_BY_RESTART)
