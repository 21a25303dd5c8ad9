"""The schema of a configuration file, and what stands in the repository."""

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from crush_trio.config.checks import file_schema
from crush_trio.config.files import ConfigFile
from crush_trio.wire.codec import structure
from tests.server.schemas import from_schema, problem

STORED = Path(__file__).parents[2] / "docs" / "crush.schema.json"


def in_openapi_form(schema):
    """Return the schema with its references as the checker of OpenAPI documents knows them."""
    return json.loads(json.dumps(schema).replace("#/$defs/", "#/components/schemas/"))


SCHEMA = in_openapi_form(file_schema())
DOCUMENT = {"components": {"schemas": SCHEMA["$defs"]}}
WHOLE = {"$ref": SCHEMA["$ref"]}
for _name in ("models", "recent_models"):
    del DOCUMENT["components"]["schemas"]["ConfigFile"]["properties"][_name]["propertyNames"]


def test_the_stored_schema_is_up_to_date():
    stored = json.loads(STORED.read_text("utf-8"))
    assert stored == file_schema(), (
        "run: python -m crush_trio.config.checks > docs/crush.schema.json"
    )


def test_the_schema_is_of_the_dialect_it_names():
    schema = file_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$ref"] == "#/$defs/ConfigFile"


def test_every_key_of_a_file_is_described():
    top = file_schema()["$defs"]["ConfigFile"]
    assert top["properties"].keys() == {
        *("$schema", "models", "recent_models", "providers", "mcp", "lsp", "options"),
        *("permissions", "tools", "hooks", "env", "crush_trio"),
    }
    assert "required" not in top
    provider = file_schema()["$defs"]["ProviderConfig"]
    assert "ollama" in provider["properties"]["type"]["enum"]


@settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(from_schema(WHOLE, DOCUMENT))
def test_what_matches_the_schema_can_be_loaded(tree):
    structure(tree, ConfigFile)


def test_what_does_not_match_is_found():
    assert problem({"options": {"debug": True}}, WHOLE, DOCUMENT) is None
    assert problem({"options": {"debug": "yes"}}, WHOLE, DOCUMENT) is not None
    assert problem({"providers": {"x": {"type": "abacus"}}}, WHOLE, DOCUMENT) is not None
