"""The run core as one writes it first: no token, a scope per running task, two publishers.

It looks reasonable and passes any test that does not control the order of steps. Each of its
three flaws can be switched off, so that a test can show that the explorer finds just that one:

* `scope_at_start`: a run can be cancelled only once its task has registered it. A cancel between
  acceptance and registration finds nothing and is lost.
* `two_publishers`: whoever cancels announces the ending of queued runs, and so does the run's own
  task when it wakes up too late to notice.
* `no_promotion_after_trouble`: a run that was cancelled or failed leaves without looking at the
  queue, and whatever waits there waits for ever.
"""

from collections import Counter, deque

import trio
from attrs import define, field


@define(eq=False)
class NaiveRun:
    name: str
    scope: trio.CancelScope | None = None
    go: trio.Event = field(factory=trio.Event)
    dropped: bool = False


@define(eq=False)
class NaiveCore:
    nursery: trio.Nursery
    turn: object
    scope_at_start: bool = False
    two_publishers: bool = False
    no_promotion_after_trouble: bool = False
    endings: Counter = field(factory=Counter)
    states: dict = field(factory=dict)
    active: NaiveRun | None = None
    accepted: list = field(factory=list)
    queue: deque = field(factory=deque)

    def accept(self, name):
        run = NaiveRun(name)
        if not self.scope_at_start:
            run.scope = trio.CancelScope()
        self.accepted.append(run)
        self.nursery.start_soon(self._conduct, run)
        return run

    def cancel(self):
        for run in self.accepted:
            if run.scope is not None:
                run.scope.cancel()
        for run in self.queue:
            run.dropped = True
            run.go.set()
            if self.two_publishers:
                self._publish(run, "cancelled")
        self.queue.clear()

    async def _conduct(self, run):
        await trio.lowlevel.cancel_shielded_checkpoint()
        state = "cancelled"
        if run.scope is None:
            run.scope = trio.CancelScope()
        with run.scope:
            if self.active is not None:
                self.queue.append(run)
                await run.go.wait()
            if not run.dropped:
                self.active = run
                await self.turn(run)
                state = "completed"
        if run in self.queue:
            self.queue.remove(run)
        self.accepted.remove(run)
        if (
            run.dropped
            and self.two_publishers
            and state == "cancelled"
            and not run.scope.cancelled_caught
        ):
            return
        self._publish(run, state)
        if self.active is run:
            self.active = None
            if state == "completed" or not self.no_promotion_after_trouble:
                self._promote()

    def _promote(self):
        if self.queue:
            self.queue[0].go.set()
            self.active = self.queue.popleft()

    def _publish(self, run, state):
        self.endings[run.name] += 1
        self.states[run.name] = state
