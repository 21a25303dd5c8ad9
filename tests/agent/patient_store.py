"""A store in memory that writes as one with a writer thread does: posted changes wait for a commit."""

from attrs import define, field

from crush_trio.store.memory.store import Kept, MemoryStore


@define(eq=False)
class PatientStore(MemoryStore):
    """What is posted is written with the next commit, before it. A kill loses what still waits.

    `before_commit` is called before each of these writes; a copy made there is what a kill leaves.
    """

    before_commit: object = field(default=lambda: None, kw_only=True)
    _posted: list = field(factory=list, init=False)

    def reopened(self, boot_id):
        return PatientStore(boot_id, Kept(self._tables.copy()))

    def post(self, *changes):
        self._posted.append(changes)

    def submit(self, *changes, session=None):
        self.flush()
        self.before_commit()
        return super().submit(*changes, session=session)

    async def tail_after(self, *place, **limits):
        self.flush()
        return await super().tail_after(*place, **limits)

    async def endings_after(self, *place, **limits):
        self.flush()
        return await super().endings_after(*place, **limits)

    def flush(self):
        while self._posted:
            self.before_commit()
            super().post(*self._posted.pop(0))
