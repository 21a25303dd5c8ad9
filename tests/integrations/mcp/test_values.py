"""What MCP servers send is turned into values that can be encoded and shown."""

import mcp_types as types
import orjson
import pytest

from crush_trio.integrations.mcp.sdk import _answer, _encodable
from crush_trio.integrations.mcp.session import McpFailure

pytestmark = pytest.mark.item("I.4")


def test_numbers_of_any_size_can_be_encoded():
    answer = _answer(types.CallToolResult(content=[], structured_content={"n": [2**64, 2**63]}))
    assert orjson.loads(answer.text) == {"n": [2.0**64, 2**63]}
    assert orjson.dumps(_encodable({"maximum": -(10**400), "x": [True, None]}))


@pytest.mark.parametrize("data", ["!!!", "ä"])
def test_data_that_is_not_base64_is_a_failure(data):
    picture = types.ImageContent(type="image", data=data, mime_type="image/png")
    with pytest.raises(McpFailure, match="base64"):
        _answer(types.CallToolResult(content=[picture]))
