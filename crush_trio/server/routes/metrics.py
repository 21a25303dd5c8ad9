"""The route that Prometheus reads. It is guarded like every other: a scraper has the token too."""

from quart import Blueprint, Response, request

from crush_trio.server.prometheus import exposition
from crush_trio.server.server import Site


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("metrics", __name__)

    @group.get("/v1/metrics")
    def metrics(site: Site) -> Response:
        body, media = exposition(site, request.headers.get("Accept", ""))
        return Response(body, 200, content_type=media)

    return group
