"""Checks of the configuration: values, hook events; the limits of a server; the JSON Schema of a file.

Values: what has the right type may still be wrong. Providers and hooks are checked once, on the
merged files, because a custom provider may come from several files. The error names the file that
set the value last. A provider that is not complete is left out, with a warning.

Hooks: programs spell the names of events differently, so case and underscores are ignored. Hooks of an
unknown event or of an unknown type are kept but never run, and a warning says so (I9). The nested form
of Claude Code is made flat when a file is read, so that everything else knows one form.

Limits count for the whole server, so they are read once, when it starts. Files of a project cannot
set them, and neither can the environment that a client sends.

Schema: made from the classes that files are read into, so that it agrees with the loader, plus a
few values that are checked later. `python -m crush_trio.config.checks` prints it, for editors.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson
from attrs import evolve

from crush_trio.config.errors import ConfigInvalid, ConfigWarning, ConfigWarningKind
from crush_trio.config.expander import Keys, key_text
from crush_trio.config.files import (
    OWN_KEY,
    ConfigFile,
    SandboxConfig,
    check_types,
    read_tree,
    without_malformed,
)
from crush_trio.config.known_providers import UNSUPPORTED
from crush_trio.config.models import CALL_LIMITS, seconds_of
from crush_trio.config.sources import Layers, Places, Source, SourceKind, Tree
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
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import ModelType
from crush_trio.wire.schema import Schema, Schemas

LIMITS_KEY: Final = f"{OWN_KEY}.limits"

LOCAL_TYPES: Final = frozenset({"litellm", "llamacpp", "lmstudio", "ollama", "omlx", "vllm"})
"""Model servers on the user's own machine; all of them have the `openai-compat` format."""

PROVIDER_TYPES: Final = LOCAL_TYPES | {
    *("anthropic", "azure", "google", "openai", "openai-compat", "openrouter", "vercel"),
}
"""The types of providers that are supported."""

_UNSUPPORTED_NAMES: Final = {"bedrock": "bedrock", "vertexai": "google-vertex", "hyper": "hyper"}
"""The types of providers that Crush has built in and that are not supported."""


_NOT_ABSOLUTE: Final = "expected a path that begins with / or ~/"
_NOT_PLAIN: Final = "expected a path without '..'"
_TOO_MUCH: Final = "expected a part of the file system, got all of it or all of the home directory"


_NOT_A_URL: Final = "expected an address such as https://host/v1; calls of this provider will fail"


def complete_providers(
    config: Config, layers: Layers[Source], known: Collection[str]
) -> tuple[Config, tuple[ConfigWarning, ...]]:
    """Return *config* without the providers that cannot work, and a warning about each of them.

    *known* are the built-in providers, which need a key only. The other providers go on working. One whose
    address is wrong is kept: its calls fail and tell why, and no other model answers in its place.
    """
    complete, warnings = {}, []

    def warn(kind: ConfigWarningKind, keys: Keys, text: str) -> None:
        source = _origin(layers, keys)
        file = None if source is None else source.path
        warnings.append(ConfigWarning(kind=kind, file=file, key=key_text(keys), text=text))

    for name, provider in config.providers.items():
        custom = name not in known and not _is_key_only(name, provider, layers)
        problem = _provider_problem(name, provider, custom=custom)
        if problem is not None:
            text = f"{problem[1]}; until then the provider is not used"
            warn(ConfigWarningKind.PROVIDER_SKIPPED, ("providers", name, *problem[0]), text)
            continue
        complete[name] = provider
        if provider.base_url and not provider.disable and not _may_be_url(provider.base_url):
            warn(ConfigWarningKind.BAD_ADDRESS, ("providers", name, "base_url"), _NOT_A_URL)
    return evolve(config, providers=complete), tuple(warnings)


def check_hooks(config: Config, layers: Layers[Source]) -> None:
    """Raise `ConfigInvalid` for the first hook that cannot work."""
    for event, hooks in config.hooks.items():
        for index, hook in enumerate(hooks if _event(event) else ()):
            if hook.type in _TYPES and (problem := _hook_problem(hook)):
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


def _provider_problem(
    name: str, provider: ProviderConfig, *, custom: bool
) -> tuple[Keys, str] | None:
    if provider.disable:
        return None
    if problem := _type_problem(name, provider) or _limits_problem(provider):
        return problem
    for index, model in enumerate(provider.models):
        if not model.id:
            return ("models", index, "id"), "expected the id of the model, got nothing"
    if not custom:
        return None
    if not provider.base_url:
        return ("base_url",), "expected the address of a provider that is not built in, got nothing"
    if not provider.models and not provider.discover_models:
        return ("models",), "expected the models of a provider that is not built in, got none"
    return None


def _may_be_url(template: str) -> bool:
    """Whether *template* is an http address with a host, or may become one when it is expanded."""
    if "$" in template:
        return True
    if re.search(r"\s", template):
        return False
    try:
        parts = urlsplit(template)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_key_only(name: str, provider: ProviderConfig, layers: Layers[Source]) -> bool:
    """Whether only the key is left of a provider of the project, because that is not trusted now."""
    keyed = provider.api_key or provider.oauth is not None
    alone = not (provider.base_url or provider.models or provider.type)
    sources = layers.contributors("providers", name)
    return bool(keyed) and alone and all(each.kind is SourceKind.USER_WORKSPACE for each in sources)


def _type_problem(name: str, provider: ProviderConfig) -> tuple[Keys, str] | None:
    kind = provider.type or _UNSUPPORTED_NAMES.get(name, "")
    if kind in UNSUPPORTED:
        return ("type",), f"{kind} is not supported; {UNSUPPORTED[kind]}"
    if kind and kind not in PROVIDER_TYPES:
        return ("type",), f"expected one of {', '.join(sorted(PROVIDER_TYPES))}"
    return None


def _limits_problem(provider: ProviderConfig) -> tuple[Keys, str] | None:
    for name, value in provider.limits.items():
        if name not in CALL_LIMITS:
            return ("limits", name), f"expected one of {', '.join(CALL_LIMITS)}"
        if seconds_of(value) is None:
            return ("limits", name), 'expected a number of seconds above 0, or "none"'
    return None


def _hook_problem(hook: HookConfig) -> tuple[Keys, str] | None:
    if not hook.command.strip():
        return ("command",), "expected a command, got nothing"
    try:
        re.compile("" if hook.matcher in EVERYTHING else hook.matcher)
    except (re.error, OverflowError, RecursionError) as error:
        return ("matcher",), f"expected a regular expression: {error}"
    return None


def _invalid(layers: Layers[Source], keys: Keys, expectation: str) -> ConfigInvalid:
    """Return the error with the file that set the value, or the closest object around it."""
    source = _origin(layers, keys)
    return ConfigInvalid.at("" if source is None else source.path, key_text(keys), expectation)


def _origin(layers: Layers[Source], keys: Keys) -> Source | None:
    ways = (keys[:length] for length in range(len(keys), 0, -1))
    return next(filter(None, (layers.origin(*way) for way in ways)), None)


# ── Hooks ────────────────────────────────────────────────────────────────────────────────────────

Hooks = Mapping[str, Sequence[HookConfig]]
"""The hooks of a configuration, by event."""


class HookEvent(StrEnum):
    """The events at which hooks run, as our texts spell them."""

    PRE_TOOL_USE = "PreToolUse"
    POST_TOOL_USE = "PostToolUse"
    USER_PROMPT_SUBMIT = "UserPromptSubmit"
    SESSION_START = "SessionStart"
    STOP = "Stop"


EVERYTHING: Final = frozenset({"", "*"})
"""The matchers that match everything."""

_EVENTS: Final = {each.value.lower(): each for each in HookEvent}
_TYPES: Final = frozenset({"", "command"})
_NO_SUCH_EVENT: Final = (
    f"unknown event, its hooks are never run; the events are {', '.join(HookEvent)}"
)
_NO_SUCH_TYPE: Final = "hooks of this type are never run; the only type is command"


def hooks_for(hooks: Hooks, event: HookEvent) -> Iterator[HookConfig]:
    """Return the hooks of an event, in the order of the configuration."""
    return (
        each
        for name, listed in hooks.items()
        if _event(name) is event
        for each in listed
        if each.type in _TYPES
    )


def hook_warnings(hooks: Hooks) -> Iterator[tuple[Keys, str]]:
    """Yield the hooks that are never run, and why."""
    for name, listed in hooks.items():
        if _event(name) is None:
            yield ("hooks", name), _NO_SUCH_EVENT
            continue
        for index, each in enumerate(listed):
            if each.type not in _TYPES:
                yield ("hooks", name, index, "type"), _NO_SUCH_TYPE


def flat_hooks(tree: Tree) -> Tree:
    """Return the content of a file with hooks in the nested form of Claude Code made flat.

    There, an entry has a `matcher` and a list `hooks` of commands, each with a `type`.
    """
    events = tree.get("hooks")
    if not isinstance(events, dict):
        return tree
    return {**tree, "hooks": {name: _flat(listed) for name, listed in events.items()}}


def _flat(listed: Json) -> Json:
    if not isinstance(listed, list):
        return listed
    flat: list[Json] = []
    for entry in listed:
        inner = entry.get("hooks") if isinstance(entry, dict) else None
        if not isinstance(inner, list):
            flat.append(entry)
            continue
        around = {key: value for key, value in entry.items() if key != "hooks"}
        flat += (
            {"type": "command", **around, **each} if isinstance(each, dict) else each
            for each in inner
        )
    return flat


def _event(name: str) -> HookEvent | None:
    return _EVENTS.get(name.replace("_", "").lower())


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
            limits = limits.changed(
                file_limits(check_types(without_malformed(tree)[0], source.path), source.path)
            )
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
    schemas = Schemas(incoming=True, defaults=True, place=_PLACE)
    whole = schemas.of(ConfigFile)
    parts = schemas.components
    parts["ProviderConfig"]["properties"]["type"]["enum"] = sorted(PROVIDER_TYPES)
    for name in ("models", "recent_models"):
        slots = {"enum": [each.value for each in ModelType]}
        parts["ConfigFile"]["properties"][name]["propertyNames"] = slots
    parts["OwnConfig"]["properties"]["limits"] = _limits()
    hook = parts["HookConfig"]["properties"]
    hook["hooks"] = {
        "type": "array",
        "items": {"type": "object", "properties": dict(hook)},
        "description": "the nested form of Claude Code: commands that share this matcher",
    }
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
