"""Checks of the configuration: values, hook events; the limits of a server; the JSON Schema of a file.

Values: what has the right type may still be wrong. Providers and hooks are checked once, on the
merged files, because a custom provider may come from several files. The error names the file that
set the value last.

Hooks: there is one event, before a tool is used (I9). Other programs spell its name differently, so
case and underscores are ignored. Hooks under any other name are kept but never run, and a warning
says so.

Limits count for the whole server, so they are read once, when it starts. Files of a project cannot
set them, and neither can the environment that a client sends.

Schema: made from the classes that files are read into, so that it agrees with the loader, plus a
few values that are checked later. `python -m crush_trio.config.checks` prints it, for editors.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.expander import Keys, key_text
from crush_trio.config.files import OWN_KEY, ConfigFile, SandboxConfig, check_types, read_tree
from crush_trio.config.sources import Layers, Places, Source
from crush_trio.errors import LimitInvalid
from crush_trio.limits import (
    DEFAULTS,
    LIMIT_INFO,
    VARIABLE,
    SizeLimits,
    read_pairs,
    read_value,
    shown,
)
from crush_trio.wire.config import Config, HookConfig, ProviderConfig
from crush_trio.wire.requests import ModelType
from crush_trio.wire.schema import Schema, Schemas

LIMITS_KEY: Final = f"{OWN_KEY}.limits"

LOCAL_TYPES: Final = frozenset({"litellm", "llamacpp", "lmstudio", "ollama", "omlx", "vllm"})
"""Model servers on the user's own machine; all of them have the `openai-compat` format."""

PROVIDER_TYPES: Final = LOCAL_TYPES | {
    *("anthropic", "azure", "bedrock", "google", "google-vertex", "hyper"),
    *("openai", "openai-compat", "openrouter", "vercel"),
}
"""The valid types of providers."""


_NOT_ABSOLUTE: Final = "expected a path that begins with / or ~/"
_NOT_PLAIN: Final = "expected a path without '..'"
_TOO_MUCH: Final = "expected a part of the file system, got all of it or all of the home directory"


def check_meaning(config: Config, layers: Layers[Source], known: Collection[str]) -> None:
    """Raise `ConfigInvalid` for the first provider or hook that cannot work.

    *known* are the built-in providers, which need a key only.
    """
    for name, provider in config.providers.items():
        if problem := _provider_problem(provider, custom=name not in known):
            keys, expectation = problem
            raise _invalid(layers, ("providers", name, *keys), expectation)
    for event, hooks in config.hooks.items():
        for index, hook in enumerate(hooks):
            if problem := _hook_problem(hook):
                keys, expectation = problem
                raise _invalid(layers, ("hooks", event, index, *keys), expectation)


def check_sandbox(content: ConfigFile, path: Path) -> None:
    """Raise `ConfigInvalid` for a path of the sandbox that no directory can have."""
    sandbox = SandboxConfig() if content.crush_trio is None else content.crush_trio.sandbox
    for name, texts in (("writable", sandbox.writable), ("hidden", sandbox.hidden)):
        for index, text in enumerate(texts):
            keys = (OWN_KEY, "sandbox", name, index)
            if not text.startswith(("/", "~/")) or "\0" in text:
                raise ConfigInvalid.at(path, key_text(keys), _NOT_ABSOLUTE)
            if ".." in text.split("/"):
                raise ConfigInvalid.at(path, key_text(keys), _NOT_PLAIN)
            if not text.strip("/~."):
                raise ConfigInvalid.at(path, key_text(keys), _TOO_MUCH)


def _provider_problem(provider: ProviderConfig, *, custom: bool) -> tuple[Keys, str] | None:
    if provider.type and provider.type not in PROVIDER_TYPES:
        return ("type",), f"expected one of {', '.join(sorted(PROVIDER_TYPES))}"
    for index, model in enumerate(provider.models):
        if not model.id:
            return ("models", index, "id"), "expected the id of the model, got nothing"
    if provider.disable or not custom:
        return None
    if not provider.base_url:
        return ("base_url",), "expected the address of a provider that is not built in, got nothing"
    if not provider.models and not provider.discover_models:
        return ("models",), "expected the models of a provider that is not built in, got none"
    return None


def _hook_problem(hook: HookConfig) -> tuple[Keys, str] | None:
    if not hook.command.strip():
        return ("command",), "expected a command, got nothing"
    try:
        re.compile(hook.matcher)
    except (re.error, OverflowError, RecursionError) as error:
        return ("matcher",), f"expected a regular expression: {error}"
    return None


def _invalid(layers: Layers[Source], keys: Keys, expectation: str) -> ConfigInvalid:
    """Return the error with the file that set the value, or the closest object around it."""
    ways = (keys[:length] for length in range(len(keys), 0, -1))
    source = next(filter(None, (layers.origin(*way) for way in ways)), None)
    return ConfigInvalid.at("" if source is None else source.path, key_text(keys), expectation)


# ── Hooks ────────────────────────────────────────────────────────────────────────────────────────

PRE_TOOL_USE: Final = "PreToolUse"
"""The name of the event in our texts."""

Hooks = Mapping[str, Sequence[HookConfig]]
"""The hooks of a configuration, by event."""


def hooks_before_tools(hooks: Hooks) -> Iterator[HookConfig]:
    """Return the hooks that run before a tool, in the order of the configuration."""
    return (each for event, listed in hooks.items() if _is_before_tools(event) for each in listed)


def unknown_events(events: Iterable[str]) -> Iterator[str]:
    """Return those of *events* that do not exist."""
    return (event for event in events if not _is_before_tools(event))


def _is_before_tools(event: str) -> bool:
    return event.replace("_", "").lower() == PRE_TOOL_USE.lower()


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────


def chosen_limits(environ: Mapping[str, str]) -> SizeLimits:
    """Return the limits of the user's files, overridden by those of `CRUSH_TRIO_LIMITS`.

    Raises `ConfigInvalid` for a file, `LimitInvalid` for the variable. Reads the disk.
    """
    home = Path(environ.get("HOME") or "/")
    places = Places(
        directory=Path("/"), home=home if home.is_absolute() else Path("/"), environment=environ
    )
    limits = DEFAULTS
    for source in places.user_sources():
        tree = read_tree(source.path)
        if tree is not None:
            limits = limits.changed(file_limits(check_types(tree, source.path), source.path))
    try:
        return limits.changed(read_pairs(environ.get(VARIABLE, "")))
    except LimitInvalid as error:
        raise LimitInvalid(f"{VARIABLE}: {error.detail}") from None


def file_limits(content: ConfigFile, path: Path) -> dict[str, float]:
    """Return the limits that one of the user's files sets; raise `ConfigInvalid` for a wrong one."""
    own = content.crush_trio
    try:
        written = {} if own is None else own.limits
        return {name: read_value(name, value) for name, value in written.items()}
    except LimitInvalid as error:
        raise ConfigInvalid.at(path, LIMITS_KEY, error.detail) from None


# ── JSON Schema ──────────────────────────────────────────────────────────────────────────────────

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
    """Return the schema of the limits: a number, or text with a number and an optional unit."""
    value = {"anyOf": [{"type": "number"}, {"type": "string"}]}
    named = {
        each.name: {**value, "description": f"{each.meaning}. {_default(each.name)}"}
        for each in LIMIT_INFO.values()
    }
    return {"type": "object", "properties": named}


def _default(name: str) -> str:
    return f"Default: {shown(name, LIMIT_INFO[name].default)}."


def main() -> None:
    """Print the schema."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    sys.stdout.buffer.write(orjson.dumps(file_schema(), option=option))


if __name__ == "__main__":
    main()
