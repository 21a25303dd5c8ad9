"""Calls of a scripted model, with everything that can be known about them afterwards."""

import trio
from attrs import define, field, frozen

from crush_trio.providers.base import Finished
from crush_trio.providers.call import Patience, converse
from crush_trio.providers.errors import ProviderError
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.wire.messages import FinishReason
from tests.providers.asking import Recorder, request

ENDED = Finished(reason=FinishReason.END_TURN)
PATIENCE = Patience(first_part=120, between_parts=90, whole=1800)


@define(eq=False)
class Telling:
    """Everything that was told, and when."""

    told: list = field(factory=list)
    begun: float = field(factory=trio.current_time)

    def __call__(self, waiting):
        self.told.append((round(trio.current_time() - self.begun, 3), waiting))

    @property
    def times(self):
        return [time for time, _ in self.told]

    @property
    def words(self):
        return [str(waiting) for _, waiting in self.told]


@frozen
class Outcome:
    ending: object
    sink: Recorder
    telling: Telling
    model: ScriptedProvider
    seconds: float


async def ask(*answers, patience=PATIENCE, sink=None, **more):
    """Ask a scripted model; return everything there is to know about it."""
    model, sink, telling = ScriptedProvider(answers), sink or Recorder(), Telling()
    begun = trio.current_time()
    try:
        ending = await converse(model, request(**more), sink, patience=patience, waiting=telling)
    except (ProviderError, OSError) as exc:
        ending = exc
    assert model.open == 0
    return Outcome(ending, sink, telling, model, trio.current_time() - begun)
