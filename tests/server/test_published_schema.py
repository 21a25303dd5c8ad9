"""The schema of configuration files, as the server publishes it."""

import orjson

from crush_trio.config.checks import file_schema
from crush_trio.testing.server.server import open_test_server


async def test_the_schema_of_configuration_files_is_served():
    async with open_test_server() as server:
        answer = await server.request("GET", "/v1/crush.schema.json")
    assert answer.status == 200
    assert orjson.loads(answer.body) == file_schema()
