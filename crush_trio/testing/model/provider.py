"""A provider that plays a script in memory, on the test's own clock.

```python
model = ScriptedProvider([[CallTool("view", {"file_path": "a"})], [Say("Done.")]])
async with model.stream(request) as parts:
    async for part in parts: ...
assert model.requests == [request] and model.open == 0
```

Steps before the first part happen on entering the stream, as with a provider that has not answered
yet; all others happen while the stream is read.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from crush_trio.providers.base import ModelRequest, Parts, StreamPart
from crush_trio.providers.errors import (
    ProviderError,
    ProviderGarbled,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    ProviderUnreachable,
)
from crush_trio.testing.model.script import (
    PARTS,
    Answer,
    Choice,
    Cut,
    Garble,
    PlainStep,
    Refuse,
    choice_of,
    expand,
)
from crush_trio.testing.server.turns import Fail, Pause, Sleep


@define(eq=False)
class ScriptedProvider:
    """A `Provider` with scripted answers: in order, or chosen by the request."""

    answers: Sequence[Answer] | Callable[[ModelRequest], Answer] = ()
    requests: list[ModelRequest] = field(factory=list, init=False)
    """All requests, in order."""
    open: int = field(default=0, init=False)
    """How many streams are open, counted from their request on."""
    _choose: Choice[ModelRequest] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._choose = choice_of(self.answers)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Play the answer to *request*, including its errors."""
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        playing = _Playing(deque(expand(self._choose(request), len(self.requests))))
        self.open += 1
        try:
            await playing.begin()
            yield playing
        finally:
            self.open -= 1


@define(eq=False)
class _Playing:
    """An answer that is being read. It never waits while it holds a part, so none is lost."""

    steps: deque[PlainStep]

    async def begin(self) -> None:
        """Take the steps before the first part."""
        await trio.lowlevel.checkpoint()
        while isinstance(self.steps[0], Pause | Sleep | Fail | Refuse):
            await _take(self.steps.popleft())

    def __aiter__(self) -> AsyncIterator[StreamPart]:
        return self

    async def __anext__(self) -> StreamPart:
        await trio.lowlevel.checkpoint()
        while self.steps:
            step = self.steps.popleft()
            if isinstance(step, PARTS):
                return step
            await _take(step)
        raise StopAsyncIteration


async def _take(step: PlainStep) -> None:
    await trio.lowlevel.checkpoint()
    match step:
        case Pause(gate=gate):
            await gate.wait()
        case Sleep(seconds=seconds):
            await trio.sleep(seconds)
        case Fail(error=error):
            raise error
        case Refuse():
            raise refusal(step)
        case Cut(tidy=tidy):
            raise ProviderGarbled("the answer ended early") if tidy else ProviderUnreachable()
        case Garble(text=text):
            raise ProviderGarbled(text)


def refusal(step: Refuse) -> ProviderError:
    """Return the error that a real provider raises for such an HTTP response."""
    error = _error_of(step.status)
    return error(step.message, status=step.status, retry_after=step.retry_after)


def _error_of(status: int) -> type[ProviderError]:
    match status:
        case 401 | 403:
            return ProviderUnauthorized
        case 429:
            return ProviderRateLimited
        case _ if status >= 500:
            return ProviderUnavailable
        case _:
            return ProviderRefused
