"""As much of JSON Schema as the OpenAPI document uses: checking values, and making some up."""

from base64 import b64encode
from functools import reduce
from operator import getitem

from hypothesis import strategies as st

from crush_trio.wire.fields import is_timestamp

INT64 = {"min_value": -(2**63), "max_value": 2**63 - 1}
PYTHON = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
KNOWN = {
    "$ref", "oneOf", "anyOf", "discriminator", "const", "enum", "type", "format", "properties",
    "required", "additionalProperties", "items", "contentEncoding", "description", "default",
    "x-enum-varnames", "x-extensible-enum",
}  # fmt: skip


def resolved(schema, document):
    """Return what a reference refers to."""
    if "$ref" not in schema:
        return schema
    return reduce(getitem, schema["$ref"].removeprefix("#/").split("/"), document)


def problem(value, schema, document, at="$"):
    """Return where *value* departs from *schema*, or None; undescribed keys are a departure."""
    schema = resolved(schema, document)
    assert schema.keys() <= KNOWN, f"this checker does not know {schema.keys() - KNOWN}"
    choices = schema.get("oneOf", []) + schema.get("anyOf", [])
    if choices:
        found = [problem(value, each, document, at) for each in choices]
        fits = found.count(None)
        enough = fits == 1 if "oneOf" in schema else fits
        return None if enough else f"{at}: fits {fits} of {len(choices)}: {found[:3]}"
    if "const" in schema:
        return None if value == schema["const"] else f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: {value!r} is none of {schema['enum']}"
    kind = schema.get("type")
    if kind and (
        not isinstance(value, PYTHON[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return f"{at}: {value!r} is no {kind}"
    if schema.get("format") == "date-time" and not is_timestamp(value):
        return f"{at}: {value!r} is no time"
    if kind == "array":
        found = (problem(v, schema["items"], document, f"{at}[{i}]") for i, v in enumerate(value))
        return next(filter(None, found), None)
    return _object_problem(value, schema, document, at) if kind == "object" else None


def _object_problem(value, schema, document, at):
    if missing := set(schema.get("required", ())) - value.keys():
        return f"{at}: without {missing}"
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for key, member in value.items():
        expected = known.get(key, rest)
        if expected is None:
            return f"{at}: {key!r} is not described"
        if found := problem(member, expected, document, f"{at}.{key}"):
            return found
    return None


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(**INT64) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
PLAIN = {
    "string": TEXT,
    "integer": st.integers(**INT64),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
}


def from_schema(schema, document):
    """Return values that match *schema*; keys that may be left out sometimes are."""
    schema = resolved(schema, document)
    if choices := schema.get("oneOf", []) + schema.get("anyOf", []):
        return st.one_of([from_schema(each, document) for each in choices])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if schema.get("format") == "date-time":
        return st.datetimes().map(lambda time: f"{time.isoformat()}Z")
    if schema.get("contentEncoding") == "base64":
        return st.binary(max_size=8).map(lambda data: b64encode(data).decode())
    if kind == "array":
        return st.lists(from_schema(schema["items"], document), max_size=2)
    if kind == "object" and "properties" in schema:
        members = {key: from_schema(each, document) for key, each in schema["properties"].items()}
        required = {key: members.pop(key) for key in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=members)
    if kind == "object":
        return st.dictionaries(
            TEXT, from_schema(schema["additionalProperties"], document), max_size=2
        )
    return PLAIN.get(kind, ANYTHING)
