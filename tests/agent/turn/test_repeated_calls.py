"""When a turn goes in circles."""

import pytest

from crush_trio.agent.turn.steps import LoopGuard
from crush_trio.tools.base import ToolResult
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import ToolCallPart

pytestmark = pytest.mark.item("D30")


def step(guard, what, answer="same"):
    call = ToolCallPart(id=ToolCallId(f"c{id(what)}"), name="view", input=what, finished=True)
    return guard.repeats([call], [ToolResult(content=answer)])


def test_ten_steps_with_six_alike_are_a_circle():
    guard = LoopGuard()
    seen = [step(guard, "a") for _ in range(5)] + [step(guard, f"b{n}") for n in range(4)]
    assert not any(seen)
    assert step(guard, "a")


def test_five_alike_are_not():
    guard = LoopGuard()
    for n in range(40):
        assert not step(guard, "a" if n % 2 else f"b{n}")


def test_fewer_than_ten_steps_never_are():
    guard = LoopGuard()
    assert not any(step(guard, "a") for _ in range(9))


def test_another_answer_is_another_interaction():
    guard = LoopGuard()
    assert not any(step(guard, "a", answer=str(n)) for n in range(40))


def test_steps_without_calls_do_not_count():
    guard = LoopGuard()
    for _ in range(9):
        step(guard, "a")
    assert not guard.repeats([], [])
    assert step(guard, "a")
