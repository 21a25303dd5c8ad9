"""`call_model`: one call of a turn's model, traced, with the time limits of its provider."""

from typing import Final

from crush_trio.agent.record.recorded import recorded
from crush_trio.agent.turn.answer import StepAnswer
from crush_trio.agent.turn.model import cost_of
from crush_trio.agent.turn.plan import Desk, TurnPlan
from crush_trio.events.facts import progress_notice
from crush_trio.providers.base import Finished, ModelRequest
from crush_trio.providers.call import Waiting, converse
from crush_trio.runtime.run import Run
from crush_trio.runtime.timeline import timed
from crush_trio.wire.runs import SpanKind

STEP: Final = "step"
SUMMARY: Final = "summary"
TITLE: Final = "title"
"""What a model call is for, as recordings name it."""

BILLED: Final = "A broken answer of the model was asked for again ({title}); both may be billed"


async def call_model(
    run: Run,
    plan: TurnPlan,
    desk: Desk,
    request: ModelRequest,
    answer: StepAnswer,
    *,
    purpose: str = STEP,
) -> Finished:
    """Stream the answer to *request* into *answer*; readers of *run* are told about retries.

    A retry that may be billed twice is also a notice of the run's result, for those who see only that.
    """
    told: set[int] = set()

    def publish_waiting(waiting: Waiting) -> None:
        run.publish(progress_notice(run.session_id, run.submission.run_id, str(waiting)))
        if waiting.billed and waiting.cause is not None and waiting.attempt not in told:
            told.add(waiting.attempt)
            run.accepted.add_notice(BILLED.format(title=waiting.cause.title))

    with (
        desk.spans.model_call(run.session_id, request) as span,
        timed(SpanKind.MODEL, request.model.id, purpose) as drawn,
    ):
        ending = await converse(
            recorded(plan.model.provider, run.session_id, purpose),
            request,
            answer,
            patience=desk.patience.limited(plan.model.limits),
            waiting=publish_waiting,
        )
        span.answered(ending, lambda: answer.message().parts)
        usage = ending.usage
        drawn.tokens_in = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        drawn.tokens_out, drawn.cost = usage.output_tokens, cost_of(usage, plan.model)
    return ending
