"""Calls from synchronous code into the thread in which the client runs; `sync.py` has the classes that use them."""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from math import inf
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, TypeVar

import anyio
import trio
from anyio.from_thread import BlockingPortal
from attrs import define, field

from crush_trio.client.http import ClientClosed

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")

_deadline: Final[ContextVar[float]] = ContextVar("crush_trio_deadline", default=inf)
"""When the calls of this thread give up."""


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """Have the calls of the block raise `TimeoutError` once *seconds* have passed."""
    token = _deadline.set(min(_deadline.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


@define(eq=False)
class Caller:
    """Runs async functions in the thread of the client, and waits for them."""

    _portal: BlockingPortal
    _process: int = field(factory=os.getpid, init=False)

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Return what *function* returns; raises `TimeoutError` at the deadline of the block around it.

        Whatever ends the wait, Ctrl-C included, cancels the call.
        """
        future = self._started(function)
        try:
            return future.result(_left())
        finally:
            future.cancel()

    @contextmanager
    def hold(self, opened: AbstractAsyncContextManager[T]) -> Generator[T]:
        """Hold an async block open, in a task of its own.

        If it ends early, because the server is away for too long, calls in the block raise `ClientClosed`,
        and leaving it raises the reason.
        """
        entered: Future[tuple[T, anyio.Event]] = Future()

        async def keep() -> None:
            leave = anyio.Event()
            async with opened as value:
                entered.set_result((value, leave))
                await leave.wait()

        ended = self._started(keep)
        try:
            either: tuple[Future[Any], ...] = (entered, ended)
            wait(either, _left(), FIRST_COMPLETED)
            if not entered.done():
                ended.result(0)
        except BaseException:
            ended.cancel()
            raise
        value, leave = entered.result()
        try:
            yield value
        except ClientClosed as error:
            raise self._leave(leave, ended) or error from None
        except BaseException:
            # It is what the caller is to see, also if the block has ended for a reason of its own.
            self._leave(leave, ended)
            raise
        if reason := self._leave(leave, ended):
            raise reason

    def stop(self) -> None:
        """End what still runs in the thread, such as a workspace whose block was not left before the client's."""
        if self._is_copy():
            self._portal.call = _refuse  # type: ignore[method-assign, assignment]  # leaving would wait
        else:
            self._portal.call(self._portal.stop, True)

    def _is_copy(self) -> bool:
        """Whether this is a copy in a process that was forked; the thread was not copied."""
        return os.getpid() != self._process

    def _started(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        check_may_block()
        if self._is_copy():
            raise RuntimeError(
                "this client belongs to the process that was forked; open another one in this process"
            )
        try:
            return self._portal.start_task_soon(function)
        except RuntimeError as error:  # anyio's, if the thread has ended
            raise ClientClosed("the client has been closed") from error

    def _leave(self, leave: anyio.Event, ended: Future[None]) -> BaseException | None:
        """Leave the block, and return the reason for which it ended, if it had one of its own."""
        if self._is_copy():
            return None
        with suppress(RuntimeError):  # anyio's, if the thread has ended
            self._portal.start_task_soon(leave.set).result()
        wait((ended,))
        return None if ended.cancelled() else ended.exception()


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError  # what anyio takes for a portal that has stopped


def check_may_block() -> None:
    """Raise `RuntimeError` in a task of Trio: every other task would stand still.

    In a running asyncio loop it is allowed, because the cells of notebooks run in one.
    """
    if trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "this is the client for programs without async, and it was called in a Trio task; "
            "use open_client there"
        )


def _left() -> float | None:
    """Return the seconds until the deadline; None if there is none."""
    deadline = _deadline.get()
    return None if deadline == inf else max(0.0, deadline - time.monotonic())


@define(eq=False)
class Face(Generic[T]):
    """The synchronous side of an object of the client."""

    _caller: Caller = field(repr=False)
    _of: T


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return *method* as a method of a `Face` that waits for the answer."""

    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return face._caller.call(partial(method, face._of, *args, **kwargs))

    return call


@define(eq=False)
class Group(Generic[F]):
    """The attribute of a `Face` that is the face of the same attribute of its object."""

    _face: Callable[[Caller, Any], F]
    _name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, face: Face[Any], owner: type) -> F:
        return self._face(face._caller, getattr(face._of, self._name))


@define(eq=False)
class SyncReader(Generic[T]):
    """Gives what an async reader gives, one by one. It holds no resources: it may be left at any point."""

    _caller: Caller = field(repr=False)
    _open: Callable[[], AbstractAsyncContextManager[AsyncIterator[T]]] = field(repr=False)
    _reader: AsyncIterator[T] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._reader = self._caller.call(self._opened)

    async def _opened(self) -> AsyncIterator[T]:
        async with self._open() as reader:
            return reader  # the readers of the client can be used after their block

    def __iter__(self) -> "SyncReader[T]":
        return self

    def __next__(self) -> T:
        """Wait for the next one and return it."""
        found = self._caller.call(self._next)
        if not found:
            raise StopIteration
        return found[0]

    async def _next(self) -> tuple[T, ...]:
        async for each in self._reader:
            return (each,)
        return ()
