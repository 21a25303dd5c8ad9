"""Gates: places where code under test stands still until the test has looked around.

A test that wants to see the middle of something should not sleep and hope. It puts a gate there,
waits until the code has reached it, checks what it came to check, and opens the gate.

Invariant: an arrival is counted before anything can be cancelled, so `reached` never misses one,
also when the arriving task is cancelled at the gate.
"""

import trio
from attrs import define, field


@define(eq=False)
class Gate:
    """A named place to wait at, closed until `open` is called and open from then on.

    ```python
    gate = Gate("before commit")
    store = ScriptedStore(before_commit=gate.wait)
    nursery.start_soon(save, store)
    await gate.reached()
    assert not store.rows
    gate.open()
    ```
    """

    name: str = "gate"
    """Says in a task dump, or an assertion, which gate this is."""
    arrivals: int = field(default=0, init=False)
    """How often a task came to this gate, whether or not it has passed."""
    _opened: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _watchers: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    @property
    def is_open(self) -> bool:
        """Whether a task that arrives now passes at once."""
        return self._opened.is_set()

    @property
    def waiting(self) -> int:
        """How many tasks stand at the gate now."""
        return self._opened.statistics().tasks_waiting

    def open(self) -> None:
        """Let everyone pass who waits here or arrives later."""
        self._opened.set()

    async def wait(self) -> None:
        """Arrive, and wait until the gate is open; a checkpoint also when it already is."""
        self.arrivals += 1
        self._watchers.unpark_all()
        await self._opened.wait()

    async def reached(self, times: int = 1) -> None:
        """Wait until tasks have come to this gate at least *times* times in all."""
        await trio.lowlevel.checkpoint()
        while self.arrivals < times:
            await self._watchers.park()
