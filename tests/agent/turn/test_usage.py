"""What calls cost, what they leave of the context, and when there is too little of it."""

import pytest

from crush_trio.agent.turn.model import (
    ChosenModel,
    cost_of,
    estimate_tokens,
    nearly_full,
    side_usage,
    step_usage,
)
from crush_trio.providers.base import ModelRequest, PromptMessage, Usage
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.wire.config import CatalogModel, SelectedModel
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import BinaryPart, Message, Role, TextPart, ToolCallPart

MODEL = CatalogModel(
    id="m",
    name="M",
    cost_per_1m_in=3,
    cost_per_1m_out=15,
    cost_per_1m_in_cached=3.75,
    cost_per_1m_out_cached=0.3,
)
CHOSEN = ChosenModel(
    provider=ScriptedProvider([]), model=MODEL, selected=SelectedModel(model="m", provider="p")
)
FLAT = ChosenModel(
    provider=ScriptedProvider([]),
    model=MODEL,
    selected=SelectedModel(model="m", provider="p"),
    flat_rate=True,
)
SESSION = SessionId("s")
REQUEST = ModelRequest(
    model=MODEL,
    chosen=CHOSEN.selected,
    system=("12345678",),
    messages=(PromptMessage(role=Role.USER, parts=(TextPart(text="hello"),)),),
)
ANSWER = Message(
    id=MessageId("a"), role=Role.ASSISTANT, session_id=SESSION, parts=(TextPart(text="Hi there!"),)
)


@pytest.mark.item("D27")
def test_a_call_costs_its_tokens_at_the_prices_of_the_catalogue():
    usage = Usage(
        input_tokens=1_000_000,
        output_tokens=100_000,
        cache_write_tokens=200_000,
        cache_read_tokens=1_000_000,
    )
    assert cost_of(usage, CHOSEN) == pytest.approx(3 + 1.5 + 0.75 + 0.3)


@pytest.mark.item("D27")
def test_the_providers_own_figure_wins_and_a_flat_rate_costs_nothing():
    usage = Usage(input_tokens=10, cost=0.25)
    assert cost_of(usage, CHOSEN) == 0.25
    assert cost_of(usage, FLAT) == 0


@pytest.mark.item("D27")
def test_a_step_sets_the_gauges_and_adds_to_the_totals():
    usage = Usage(input_tokens=100, output_tokens=7, cache_read_tokens=50)
    used = step_usage(SESSION, usage, CHOSEN, REQUEST, ANSWER, 9)
    assert (used.prompt_tokens, used.completion_tokens) == (150, 7)
    assert (used.spent_prompt_tokens, used.spent_completion_tokens) == (150, 7)
    assert used.cost == pytest.approx((100 * 3 + 7 * 15 + 50 * 0.3) / 1e6)


@pytest.mark.item("D27")
def test_half_a_report_leaves_the_other_gauge_alone():
    used = step_usage(SESSION, Usage(output_tokens=7), CHOSEN, REQUEST, ANSWER, 9)
    assert (used.prompt_tokens, used.completion_tokens) == (None, 7)


@pytest.mark.item("D27a")
def test_a_silent_provider_is_estimated_at_no_cost():
    used = step_usage(SESSION, Usage(), CHOSEN, REQUEST, ANSWER, 9)
    assert used.prompt_tokens == 2 + 1 + 2  # the instructions, the role, the text
    assert used.completion_tokens == 3
    assert (used.cost, used.spent_prompt_tokens, used.spent_completion_tokens) == (0, 0, 0)


@pytest.mark.item("D27a")
def test_estimates_round_each_piece_up_and_count_media_by_their_description():
    asked = ToolCallPart(id=ToolCallId("c"), name="view", input='{"a":1}', finished=True)
    picture = BinaryPart(path="a.png", mime_type="image/png", data=b"x" * 10_000)
    assert estimate_tokens([asked]) == 1 + 2
    assert estimate_tokens([picture]) == 2 + 3
    assert estimate_tokens([TextPart(text="é")]) == 1


@pytest.mark.item("D26")
def test_work_beside_the_conversation_leaves_the_gauges_alone():
    used = side_usage(SESSION, Usage(input_tokens=5, output_tokens=2), CHOSEN, 9)
    assert (used.prompt_tokens, used.completion_tokens) == (None, None)
    assert (used.spent_prompt_tokens, used.spent_completion_tokens) == (5, 2)


@pytest.mark.item("D29")
@pytest.mark.parametrize(
    ("window", "held", "full"),
    [
        (0, 10**9, False),  # nobody knows how much there is room for
        (1_000_000, 979_999, False),
        (1_000_000, 980_000, True),
        (200_000, 159_999, False),
        (200_000, 160_000, True),
        (200_001, 180_000, False),
        (200_001, 180_001, True),
    ],
)
def test_a_context_is_nearly_full_when_too_little_of_its_window_is_left(window, held, full):
    assert nearly_full(window, held - 10, 10) is full
