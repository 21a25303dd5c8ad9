"""The state of a server in the format of Prometheus.

Everything is collected when a scrape asks for it: from the counters in `Meters`, and from the workspaces
and streams as they are at that moment. Between two scrapes there is no metrics object, so no code of a
run depends on one. The library that writes the format is imported by the first scrape.

`docs/operations.md` has a row for each series.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import trio
from attrs import define

from crush_trio import __version__
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.server.server import Server
from crush_trio.store.base import Timings
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.machine import Approval
from crush_trio.wire.runs import RunState

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

    from crush_trio.backend.cluster.node import Node

LIVE: Final = (RunState.ACCEPTED, RunState.QUEUED, RunState.ACTIVE, RunState.ENDING)
ENDED: Final = tuple(state for state in RunState if state.terminal)


def exposition(server: Server, accept: str) -> tuple[bytes, str]:
    """Return the metrics of *server* and their media type: the form that the header *accept* prefers.

    The registry is made for this one answer. The library's global registry is not used, because two
    servers in one process have two sets of numbers.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(server))
    ProcessCollector(registry=registry)
    encode, media = choose_encoder(accept)
    return encode(registry), media


@define(eq=False)
class _Collected:
    """The collector that the registry asks for its series."""

    server: Server

    def collect(self) -> "Iterator[Metric]":
        yield from _server(self.server)
        yield from _runs(self.server)
        yield from _streams(self.server)
        yield from _stores(self.server)
        yield from _audit(self.server)
        yield from _requests(self.server)
        yield from _commands(self.server)
        if self.server.cluster is not None:
            yield from _node(self.server.cluster.node)


def _server(server: Server) -> "Iterator[Metric]":
    yield _gauge("build_info", "What is serving; always 1.", {(__version__,): 1}, ["version"])
    yield _gauge("workspaces", "Workspaces that are open.", len(server.meters.workspaces))
    yield _counter("events_published", "Events published to the logs.", server.meters.events)


def _runs(server: Server) -> "Iterator[Metric]":
    meters = server.meters
    live = list(_live_runs(server))
    states = Counter(run.state for run in live)
    queues = Counter(run.session_id for run in live if run.state is RunState.QUEUED)
    yield _gauge(
        "runs",
        "Runs that have not ended, by what they do.",
        {(state.value,): states[state] for state in LIVE},
        ["state"],
    )
    yield _gauge("queue_depth", "Runs that wait behind another one.", queues.total())
    yield _gauge("queue_depth_max", "Runs in the longest queue.", max(queues.values(), default=0))
    yield _counter("runs_accepted", "Runs accepted.", meters.accepted)
    yield _counter(
        "runs_not_stored", "Runs whose acceptance could not be stored.", meters.not_stored
    )
    yield _counter(
        "runs_ended",
        "Runs that have ended, by how.",
        {(state.value,): meters.ended[state] for state in ENDED},
        ["outcome"],
    )
    yield _histogram(
        "run_seconds",
        "From a run's becoming active to its ending.",
        {(state.value,): timings for state, timings in meters.durations.items()},
        ["outcome"],
    )
    yield _histogram("cancel_seconds", "From a run's cancel to its ending.", {(): meters.cancels})


def _live_runs(server: Server) -> Iterator[AcceptedRun]:
    for workspace in server.meters.workspaces:
        yield from workspace.runs.runs


def _streams(server: Server) -> "Iterator[Metric]":
    lags = server.streams.lags()
    yield _gauge("streams", "Event streams that are attached.", len(lags))
    yield _gauge(
        "stream_lag_events", "Events that streams have not read yet, all together.", sum(lags)
    )
    yield _gauge(
        "stream_lag_events_max",
        "Events that the slowest stream has not read yet.",
        max(lags, default=0),
    )


def _stores(server: Server) -> "Iterator[Metric]":
    stores = [workspace.store for workspace in server.meters.workspaces]
    yield _gauge(
        "stores_degraded",
        "Stores that are in trouble.",
        sum(store.degraded is not None for store in stores),
    )
    loads = [store.load for store in stores]
    yield _gauge(
        "store_pending_writes",
        "Writes that are not durable yet.",
        sum(load.pending for load in loads),
    )
    shared = {load.database: load.size for load in loads if load.database}
    own = sum(load.size for load in loads if not load.database)
    yield _gauge(
        "store_bytes",
        "Size of the files of the stores, and of the database that they share.",
        own + sum(shared.values()),
    )
    yield _histogram(
        "store_commit_seconds", "What commits to the stores took.", {(): server.meters.commits}
    )


def _audit(server: Server) -> "Iterator[Metric]":
    audit = server.audit
    yield _gauge("audit_degraded", "Whether the audit cannot be written.", int(bool(audit.problem)))
    yield _counter("audit_records", "Records written to the audit.", audit.written)
    yield _counter("audit_records_lost", "Records that were dropped.", audit.lost)


def _requests(server: Server) -> "Iterator[Metric]":
    yield _counter(
        "http_requests",
        "Requests, by the route they found and the status of the answer.",
        server.meters.requests,
        ["method", "route", "status"],
    )
    yield _histogram(
        "http_response_seconds",
        "From a request to the beginning of its answer.",
        server.meters.responses,
        ["method", "route"],
    )


def _commands(server: Server) -> "Iterator[Metric]":
    machines = server.meters.machines
    yield _gauge(
        "sandbox",
        "The sandbox that holds the commands of agents: 1 for its kind, once it was tried.",
        {(kind.value,): any(each.found is kind for each in machines) for kind in SandboxKind},
        ["kind"],
    )
    started = sum((each.commands for each in machines), Counter[tuple[SandboxKind, Approval]]())
    yield _counter(
        "commands",
        "Commands that agents started, by the sandbox that held them and why they could run.",
        {(kind.value, why.value): started[kind, why] for kind in SandboxKind for why in Approval},
        ["sandbox", "approval"],
    )


def _node(node: "Node") -> "Iterator[Metric]":
    """What a node of a cluster adds; each series is labelled with the node that was scraped."""
    name, meters, labels = (node.card.id,), node.meters, ["node"]
    yield _gauge(
        "node_info",
        "The node and its site; always 1.",
        {(*name, node.card.site, node.card.boot): 1},
        ["node", "site", "boot"],
    )
    yield _gauge("leases", "Leases that this node holds.", {name: len(node.leases)}, labels)
    left = [lease.deadline - trio.current_time() for lease in node.leases]
    yield _gauge(
        "lease_seconds_min",
        "Until the first lease of this node expires if it is not renewed; none without leases.",
        {name: round(min(left), 3)} if left else {},
        labels,
    )
    yield _counter("leases_lost", "Leases that this node has lost.", {name: meters.lost}, labels)
    yield _counter(
        "takeovers",
        "Workspaces opened here that were open when their last owner ended.",
        {name: meters.takeovers},
        labels,
    )
    yield _counter(
        "renewals",
        "Attempts to renew all leases of this node, by whether the store has answered.",
        {(*name, result): meters.renewals[result == "done"] for result in ("done", "failed")},
        ["node", "result"],
    )
    yield _counter(
        "forwarded_requests",
        "Requests passed on to other nodes, by what came of them.",
        {(*name, kind): meters.forwarded[kind] for kind in ("answer", "stream", "failed")},
        ["node", "result"],
    )
    yield _gauge(
        "forwarded_streams",
        "Event streams that this node passes on now.",
        {name: meters.streams},
        labels,
    )


# ── The forms of a series ───────────────────────────────────────────────────────────────────────

_Labels = tuple[str, ...]


def _gauge(
    name: str, about: str, values: float | Mapping[_Labels, float], labels: Iterable[str] = ()
) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"crush_trio_{name}", about, labels=list(labels))
    for key, value in _labelled(values):
        family.add_metric(key, value)
    return family


def _counter(
    name: str, about: str, values: int | Mapping[_Labels, int], labels: Iterable[str] = ()
) -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"crush_trio_{name}", about, labels=list(labels))
    for key, value in _labelled(values):
        family.add_metric(key, value)
    return family


def _labelled(values: float | Mapping[_Labels, float]) -> Iterable[tuple[_Labels, float]]:
    return values.items() if isinstance(values, Mapping) else [((), values)]


def _histogram(
    name: str, about: str, timings: Mapping[_Labels, Timings], labels: Iterable[str] = ()
) -> "HistogramMetricFamily":
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(f"crush_trio_{name}", about, labels=list(labels))
    for key, each in timings.items():
        bounds = [*map(str, each.bounds), "+Inf"]
        family.add_metric(key, list(zip(bounds, accumulate(each.counts), strict=True)), each.total)
    return family
