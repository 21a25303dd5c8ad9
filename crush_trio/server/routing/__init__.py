"""The route table's rows (`route`), and the one implementation that answers them all (`call`)."""

from crush_trio.server.routing.call import Call, ReadBody, Reply, paged, refused, respond
from crush_trio.server.routing.route import (
    CLIENT,
    EVENTS,
    EXTENSIONS,
    HTML,
    JSON,
    METRICS,
    REAL,
    RECEIPT,
    STORE_ERRORS,
    WORKSPACE,
    Matcher,
    Query,
    Route,
    under,
)

__all__ = [
    "CLIENT",
    "EVENTS",
    "EXTENSIONS",
    "HTML",
    "JSON",
    "METRICS",
    "REAL",
    "RECEIPT",
    "STORE_ERRORS",
    "WORKSPACE",
    "Call",
    "Matcher",
    "Query",
    "ReadBody",
    "Reply",
    "Route",
    "paged",
    "refused",
    "respond",
    "under",
]
