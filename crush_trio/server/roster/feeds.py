"""What the stream of a page reads: one session of a workspace with its subagents, or no workspace."""

from attrs import define, field

from crush_trio.agent.record.event_reader import ResumableReader
from crush_trio.backend.workspace import Family
from crush_trio.errors import LogClosed
from crush_trio.events.cursor import Batch
from crush_trio.events.frames import Form
from crush_trio.server.sse import Drain
from crush_trio.wire.ids import SessionId


@define(eq=False)
class SessionFeed:
    """A reader of a workspace that leaves out the transcripts of other sessions; a `Feed`.

    The readers of one session share what is left of a batch, with its bytes.
    """

    _reader: ResumableReader
    _session_id: SessionId
    _family: Family
    _whole: Batch | None = field(default=None, init=False, repr=False)
    """A batch that was read, while it is found out whose subagents are in it."""

    @property
    def form(self) -> Form | None:
        """The form in which the reader wants its events."""
        return self._reader.form

    @property
    def after(self) -> int:
        """The last event that was read, also if it was left out."""
        return self._reader.after

    @property
    def lost(self) -> bool:
        """Whether the next batch is a resync."""
        return self._reader.lost

    @property
    def lag(self) -> int:
        """How many published events were not read yet."""
        return self._reader.lag

    @property
    def behind(self) -> bool:
        """Whether there is something to read now."""
        return self._whole is not None or self._reader.behind

    def rewind(self, after: int) -> None:
        """Go back to *after*, a place in the batch that was read last."""
        self._reader.rewind(after)

    async def read(self) -> Batch:
        """Wait for new events and return those that are not left out, perhaps none."""
        if self._whole is None:
            self._whole = await self._reader.read()
        return await self._narrowed(self._whole)

    async def missed(self) -> Batch | None:
        """Return the next missed events of earlier starts; None after the last."""
        if self._whole is None:
            self._whole = await self._reader.missed()
            if self._whole is None:
                return None
        return await self._narrowed(self._whole)

    async def _narrowed(self, batch: Batch) -> Batch:
        """Return what is left of *batch*. Cancelling loses nothing: it is kept until this returns."""
        kept = batch.narrowed(self._session_id)
        if kept is None:
            owners = {entry.owner for entry in batch.entries}
            if batch.resync is not None:
                owners |= {view.head.session_id for view in batch.resync.messages}
            await self._family.learn(owner for owner in owners if owner is not None)
            kept = batch.narrow(
                self._session_id, lambda owner: self._family.within(owner, self._session_id)
            )
        self._whole = None
        return kept  # noqa: ASYNC910 - reading was a checkpoint


@define(eq=False)
class NoWorkspace:
    """The feed of a page that shows no workspace: it ends when the server does."""

    _drain: Drain
    form: Form | None = Form.NATIVE
    after: int = 0
    lost: bool = True
    lag: int = 0
    behind: bool = False

    def rewind(self, after: int) -> None:
        """Do nothing: nothing was read."""

    async def read(self) -> Batch:
        """Wait for the end."""
        await self._drain.announcing.wait()
        raise LogClosed
