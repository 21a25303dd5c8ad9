"""Routes about the server itself (wire.md §3.1)."""

from quart import Blueprint, Response

from crush_trio.server import reads
from crush_trio.server.answers import answer, nothing, read_body, respond
from crush_trio.server.bodies import parse_client_id
from crush_trio.server.server import Site
from crush_trio.wire.requests import ControlRequest


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("system", __name__)

    @group.get("/v1/health")
    async def health(site: Site) -> Response:
        return respond(await reads.health(site, {}))

    @group.get("/v1/version")
    def version(site: Site) -> Response:
        return answer(site.version)

    @group.get("/v1/config")
    def config(site: Site) -> Response:
        return answer({})

    @group.post("/v1/control")
    async def control(site: Site) -> Response:
        body = await read_body(ControlRequest)
        site.backend.control(body.command)
        return nothing()

    @group.delete("/v1/clients/<client_id>")
    def retire(site: Site, client_id: str) -> Response:
        site.backend.retire(parse_client_id(client_id))
        return nothing()

    return group
