"""`Submission` (what a caller sends), `Completion` (what a turn returns) and `Outcome`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import deep_iterable, instance_of

from crush_trio.errors import PromptEmpty, PromptTooLong, SessionMissing
from crush_trio.events.facts import Event, Fact, MessageChange
from crush_trio.limits import DEFAULTS, SizeLimits, byte_size, shown_bytes
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.ids import NO_MESSAGE, MessageId, RunId, SessionId
from crush_trio.wire.runs import RunKind, RunState, WhenBusy, WhenUnclaimed

if TYPE_CHECKING:  # many classes; the core only hands their values on
    from crush_trio.wire.config import SelectedModel
    from crush_trio.wire.requests import Attachment

INTERRUPTED_BY_RESTART = "interrupted by restart"
CANCELLED_WHILE_ACTIVE = "run cancelled"


def _as_tuple(attachments: Iterable["Attachment"]) -> tuple["Attachment", ...]:
    return tuple(attachments)


@frozen(kw_only=True)
class Submission:
    """What a caller sends: a prompt for a session, optionally with a run id chosen by the caller.

    A submission with a `run_id` gets a turn of its own. One without may be folded into the active turn,
    unless it is to outlive the clients, is to be recorded, or has a permission policy or model of its own:
    the active turn may have others. One that steers (`WhenBusy.STEER`) is folded also with a `run_id`,
    and with policies that the active run can keep.

    The policies say how to treat the submission and do not count when two submissions are compared.
    So the same prompt under the same run id is the same run, and the policies of the first attempt
    hold.
    """

    session_id: SessionId
    prompt: str = ""
    attachments: tuple["Attachment", ...] = field(default=(), converter=_as_tuple)
    run_id: RunId | None = None
    kind: RunKind = RunKind.PROMPT
    when_busy: WhenBusy = field(default=WhenBusy.ENQUEUE, eq=False)
    when_unclaimed: WhenUnclaimed = field(default=WhenUnclaimed.CANCEL, eq=False)
    permissions: PermissionPolicy = field(default=PermissionPolicy(), eq=False)
    interactive: bool = field(default=True, eq=False)
    """Whether the client shows asks to a person (L30)."""
    model: "SelectedModel | None" = field(default=None, eq=False)
    """The model for this run; None is the model that the workspace has selected when it begins."""
    record: bool = field(default=False, eq=False)
    """Whether the run is recorded; see `agent.record.recording`."""

    def check(self, sizes: SizeLimits = DEFAULTS) -> None:
        """Raise if the prompt is empty or too long, or if the session id is missing (A1).

        An image without text is refused: it does not say what the model should do with it.
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
        """Whether the active run may absorb this: it has no run id and no policy of its own."""
        plain = (
            self.when_unclaimed is WhenUnclaimed.CANCEL
            and self.permissions == PermissionPolicy()
            and self.model is None
            and not self.record
        )
        return plain and self.run_id is None and self.kind is RunKind.PROMPT

    def folds_into(self, active: "Submission") -> bool:
        """Whether the run of *active* may absorb this one.

        A run never takes in a prompt that was sent under another permission policy: who sends a prompt
        has a say in what it may do, and must have the right to that. A model or a recording that a
        prompt asks for must be what the run has.
        """
        if self.when_busy is not WhenBusy.STEER:
            return self.foldable and active.permissions == PermissionPolicy()
        return (
            self.kind is RunKind.PROMPT
            and self.permissions == active.permissions
            and self.model in (None, active.model)
            and self.record <= active.record
        )


@frozen(kw_only=True)
class Completion:
    """What a turn returns: its last answer, and notices to publish together with the ending.

    The notices are published when the session is no longer busy, directly before the ending (D28).
    """

    message_id: MessageId = field(default=NO_MESSAGE, validator=instance_of(str))  # type: ignore[arg-type]  # a NewType
    text: str = field(default="", validator=instance_of(str))
    notices: tuple[Event, ...] = field(
        default=(), validator=deep_iterable(instance_of((Fact, MessageChange)))
    )


NOTHING_YET = Completion()


@frozen(kw_only=True)
class Outcome:
    """How a run ended; made once per run. A cancelled run may have an `error` too (B3)."""

    state: RunState = field()
    message_id: MessageId = NO_MESSAGE
    text: str = ""
    error: str = ""
    title: str = ""
    """The heading of the error, for people; empty for the default heading."""
    folded_into: RunId | None = None
    notices: tuple[Event, ...] = field(default=(), repr=False)

    @state.validator
    def _must_be_an_ending(self, _attribute: object, value: RunState) -> None:
        if not value.terminal:
            raise ValueError(f"{value} is not an ending")

    @classmethod
    def completed(cls, done: Completion) -> "Outcome":
        """Return the outcome of a run whose turn returned."""
        return cls(
            state=RunState.COMPLETED,
            message_id=done.message_id,
            text=done.text,
            notices=done.notices,
        )

    @classmethod
    def cancelled(cls, error: str = "", partial: Completion = NOTHING_YET) -> "Outcome":
        """Return the outcome of a cancelled run; *partial* is its answer so far."""
        return cls(
            state=RunState.CANCELLED,
            error=error,
            message_id=partial.message_id,
            text=partial.text,
        )

    @classmethod
    def errored(cls, error: str, partial: Completion = NOTHING_YET, title: str = "") -> "Outcome":
        """Return the outcome of a run whose turn failed or could not begin."""
        return cls(
            state=RunState.ERRORED,
            error=error or "unknown error",
            title=title,
            message_id=partial.message_id,
            text=partial.text,
        )

    @classmethod
    def folded(cls, into: RunId) -> "Outcome":
        """Return the outcome of a run whose prompt was folded into another run's turn."""
        return cls(state=RunState.FOLDED, folded_into=into)

    @classmethod
    def interrupted(cls) -> "Outcome":
        """Return the outcome of a run whose process ended before the run did."""
        return cls(state=RunState.INTERRUPTED, error=INTERRUPTED_BY_RESTART)
