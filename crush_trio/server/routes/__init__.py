"""The route table: `ROUTES` has every row, and each module here has rows beside their handlers.

The rows of the Go program's interface come first, those of ours after them.
"""

from typing import Final

from crush_trio.server.routes import (
    agent,
    asks,
    config,
    insight,
    integrations,
    page,
    roster,
    runs,
    sessions,
    system,
    workspaces,
)
from crush_trio.server.routing import Matcher, Route

_MODULES: Final = (
    system,
    workspaces,
    sessions,
    agent,
    runs,
    insight,
    asks,
    config,
    integrations,
    page,
    roster,
)

ROUTES: Final[tuple[Route, ...]] = tuple(
    sorted(
        (route for module in _MODULES for route in module.ROUTES), key=lambda route: route.extension
    )
)
"""Every route that is served."""

FILES: Final = page.FILES
"""The files of the page, which no document lists."""

MATCHER: Final = Matcher.of((*ROUTES, *FILES))
