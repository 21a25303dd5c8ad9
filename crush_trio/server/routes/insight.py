"""Routes for people who want to know what runs did and what they used (docs/http.md)."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

import trio

from crush_trio.clock import SystemClock, unix_offset
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.server.routing import (
    EXTENSIONS,
    STORE_ERRORS,
    WORKSPACE,
    Call,
    Query,
    Route,
    elsewhere,
    under,
)
from crush_trio.store.base import Store
from crush_trio.wire.answers import SpanView, TimelineView
from crush_trio.wire.messages import FinishPart, Message, Role
from crush_trio.wire.runs import RunView, SpanKind
from crush_trio.wire.views import DAY, UsageDay, day_of

DAYS: Final = 30
DAYS_AT_MOST: Final = 366

# ── The timeline of a run ───────────────────────────────────────────────────────────────────────


async def timeline(call: Call) -> TimelineView:
    """Return what a run did when: exactly if the workspace remembers it, else from what is stored."""
    await trio.lowlevel.checkpoint()
    workspace = call.workspace
    if workspace.runs.knows(call.run_id):
        return _remembered(workspace.runs.find(call.run_id), unix_offset(workspace.clock))
    run = (await workspace.store.run(call.run_id)).view
    return TimelineView(run=run, spans=await _stored(workspace.store, run), coarse=True)


def _remembered(run: AcceptedRun, offset: float) -> TimelineView:
    spans = tuple(
        SpanView(
            kind=span.kind,
            name=span.name,
            begin=round(span.begin + offset, 6),
            end=None if span.end is None else round(span.end + offset, 6),
            detail=span.detail,
            tokens_in=span.tokens_in,
            tokens_out=span.tokens_out,
            cost=span.cost,
        )
        for span in run.timeline.spans
    )
    return TimelineView(run=run.view, spans=spans, left_out=run.timeline.left_out)


async def _stored(store: Store, run: RunView) -> tuple[SpanView, ...]:
    """Return how long the run waited, and when its answers were written."""
    messages = (await store.run_messages([run.id])).get(run.id, [])
    waited = SpanView(
        kind=SpanKind.QUEUED, begin=run.accepted_at, end=run.started_at or run.ended_at or None
    )
    return (waited, *_answers(stored.message for stored in messages))


def _answers(messages: Iterator[Message]) -> Iterator[SpanView]:
    for message in messages:
        if message.role is Role.ASSISTANT:
            ends = [part.time for part in message.parts if isinstance(part, FinishPart)]
            yield SpanView(
                kind=SpanKind.MODEL,
                name=message.model,
                begin=message.created_at,
                end=max([message.created_at, *ends]) if ends else None,
            )


# ── What was used ───────────────────────────────────────────────────────────────────────────────


async def usage(call: Call) -> list[UsageDay]:
    """Return what each of the last days used in the open workspaces; today, in UTC, is the last."""
    count = call.number("days", DAYS_AT_MOST) or DAYS
    asked = await elsewhere(call, tuple[UsageDay, ...])
    workspaces = call.server.workspaces()
    clock = workspaces[0].clock if workspaces else SystemClock()
    today = clock.unix() // DAY
    first = (today - count + 1) * DAY
    days = {day: UsageDay(day=day) for day in (day_of(first + n * DAY) for n in range(count))}
    given = [*asked, *[await workspace.store.usage(first) for workspace in workspaces]]
    for used in chain.from_iterable(given):
        days[used.day] = _sum(days.get(used.day, UsageDay(day=used.day)), used)
    return [days[day] for day in sorted(days)]


def _sum(one: UsageDay, other: UsageDay) -> UsageDay:
    return UsageDay(
        day=one.day,
        runs=one.runs + other.runs,
        tokens_in=one.tokens_in + other.tokens_in,
        tokens_out=one.tokens_out + other.tokens_out,
        cost=one.cost + other.cost,
    )


ROUTES: Final = (
    Route(
        "GET",
        "/v1/usage",
        "Show what each of the last days used in the open workspaces.",
        usage,
        name="get_usage",
        answer=tuple[UsageDay, ...],
        query=(Query("days", "how many days", shape=int, least=1, most=DAYS_AT_MOST, usual=DAYS),),
        errors=("bad_request", *STORE_ERRORS),
        group=EXTENSIONS,
    ),
    *under(
        f"{WORKSPACE}/runs",
        Route(
            "GET",
            "/{rid}/timeline",
            "Show what a run did when.",
            timeline,
            name="get_run_timeline",
            answer=TimelineView,
            errors=("run_not_found",),
        ),
        group=EXTENSIONS,
        errors=STORE_ERRORS,
    ),
)
