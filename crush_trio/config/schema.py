"""The JSON Schema of a configuration file, for editors that check and complete while one writes.

Made from the classes that files are read into, so that it cannot say anything else than the loader
does, with the few values added that are checked only later. `python -m crush_trio.config.schema` prints it.
"""

import sys
from typing import Final

import orjson

from crush_trio.config.checks import PROVIDER_TYPES
from crush_trio.config.format import ConfigFile
from crush_trio.limits import ABOUT, shown
from crush_trio.wire.requests import ModelType
from crush_trio.wire.schema import Schema, Schemas

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PLACE: Final = "#/$defs/"


def file_schema() -> Schema:
    """Return the schema of `crush.json`."""
    schemas = Schemas(incoming=True, place=_PLACE)
    whole = schemas.of(ConfigFile)
    parts = schemas.components
    parts["ProviderConfig"]["properties"]["type"]["enum"] = sorted(PROVIDER_TYPES)
    for name in ("models", "recent_models"):
        slots = {"enum": [each.value for each in ModelType]}
        parts["ConfigFile"]["properties"][name]["propertyNames"] = slots
    parts["OwnConfig"]["properties"]["limits"] = _limits()
    return {
        "$schema": DIALECT,
        "title": "crush.json",
        **whole,
        "$defs": dict(sorted(parts.items())),
    }


def _limits() -> Schema:
    """Return the schema of the limits: a number, or text with a number and perhaps a unit."""
    value = {"anyOf": [{"type": "number"}, {"type": "string"}]}
    named = {
        each.name: {**value, "description": f"{each.meaning}. {_default(each.name)}"}
        for each in ABOUT.values()
    }
    return {"type": "object", "properties": named}


def _default(name: str) -> str:
    return f"Default: {shown(name, ABOUT[name].default)}."


def main() -> None:
    """Print the schema."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    sys.stdout.buffer.write(orjson.dumps(file_schema(), option=option))


if __name__ == "__main__":
    main()
