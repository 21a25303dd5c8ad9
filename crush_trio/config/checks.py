"""What has the right type and still cannot be meant: checked once, on everything merged.

A custom provider may be put together from several files, so nothing can be missing from a single one.
The error names the file that had the last word.

What a project cannot say until the user trusts it, taken out before anybody acts on it.

Four things in a configuration are worth more than they look. The variables of `env` decide which
program a name stands for. A tool in `permissions.allowed_tools` is used without a question. A hook is a
command that is run, and a list of hooks takes the place of the user's own. And whoever decides where the
requests to a provider go, and what goes along, gets the key they are sent with. So a file that came with
a project nobody vouches for has no say in the first three, and in the fourth only if nothing is sent that
came from somebody else. A notice says so, and how to trust the file.

The JSON Schema of a configuration file, for editors that check and complete while one writes.

Made from the classes that files are read into, so that it cannot say anything else than the loader
does, with the few values added that are checked only later. `python -m crush_trio.config.checks` prints it.

The events that hooks are run at, and how a configuration may spell them (I9).

There is one event: a tool is about to be used. Files of other programs spell its name in their own
way, so neither case nor underscores count. What stands under any other name is kept and never run, and
a notice says so.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import orjson
from attrs import evolve, frozen

from crush_trio.config.errors import ConfigInvalid, Notice, NoticeKind
from crush_trio.config.expander import Keys, key_text
from crush_trio.config.files import ConfigFile
from crush_trio.config.known_providers import KnownProvider
from crush_trio.config.sources import Layer, Layers, Places, Source, Tree
from crush_trio.limits import ABOUT, shown
from crush_trio.wire.config import Config, HookConfig, ProviderConfig
from crush_trio.wire.requests import ModelType
from crush_trio.wire.schema import Schema, Schemas

_ROUTE: Final = ("type", "base_url", "extra_headers", "extra_body")
"""What decides where the requests to a provider go, and what goes along with them."""

_SENT: Final = ("api_key", "oauth", "base_url", "extra_headers", "extra_body")
"""Where something may stand that is meant for one address only."""


@frozen(kw_only=True)
class Kept:
    """The layers without what was taken out of them, and what was."""

    layers: Layers[Source]
    notices: tuple[Notice, ...] = ()


def withhold(layers: Layers[Source], known: Mapping[str, KnownProvider], places: Places) -> Kept:
    """Return *layers* without what their files have no say in; the others keep all they say."""
    kept: list[Layer[Source]] = []
    notices: list[Notice] = []
    for layer in layers.layers:
        source, tree = layer.source, layer.tree
        ways = () if source.may_run else tuple(_beyond(layer, layers, known))
        for way in ways:
            tree = _without(tree, way)
            notices.append(_ignored(source, way, places))
        kept.append(evolve(layer, tree=tree))
    return Kept(layers=Layers(tuple(kept)), notices=tuple(notices))


def _beyond(
    layer: Layer[Source], layers: Layers[Source], known: Mapping[str, KnownProvider]
) -> Iterator[tuple[str, ...]]:
    """Return the way to everything in a project's file that the project has no say in."""
    if "env" in layer.tree:
        yield ("env",)
    if "hooks" in layer.tree:
        yield ("hooks",)
    if "allowed_tools" in _object(layer.tree, "permissions"):
        yield ("permissions", "allowed_tools")
    others = [each.tree for each in layers.layers if not _same_party(each.source, layer.source)]
    for name in _object(layer.tree, "providers"):
        entry = _object(layer.tree, "providers", name)
        theirs = any(_sends(_object(tree, "providers", name)) for tree in others)
        if theirs or _sends_users_key(entry, known.get(name)):
            yield from (("providers", name, part) for part in _ROUTE if part in entry)


def _same_party(one: Source, other: Source) -> bool:
    """Whether two files are the same people's word: all that came with a project are."""
    return one.kind is other.kind and one.may_run == other.may_run


def _sends(entry: Tree) -> bool:
    """Whether an entry has something in it that is meant for its provider alone."""
    return any(entry.get(part) for part in _SENT)


def _sends_users_key(entry: Tree, built_in: KnownProvider | None) -> bool:
    """Whether a built-in provider would be asked with credentials from the user's environment."""
    if built_in is None:
        return False
    return bool(built_in.needs or (built_in.key and not entry.get("api_key")))


def _ignored(source: Source, way: Keys, places: Places) -> Notice:
    return Notice(
        kind=NoticeKind.NOT_TRUSTED,
        file=source.path,
        key=key_text(way),
        text=f"ignored, {source.how_to_trust(places.data_file)}",
    )


def _object(tree: Tree, *way: str) -> Tree:
    """Return the object at *way*, an empty one if there is none."""
    for key in way:
        inner = tree.get(key)
        tree = inner if isinstance(inner, Mapping) else {}
    return tree


def _without(tree: Tree, way: tuple[str, ...]) -> Tree:
    first, *rest = way
    if rest:
        return {**tree, first: _without(tree[first], tuple(rest))}
    return {key: value for key, value in tree.items() if key != first}


LOCAL_TYPES: Final = frozenset({"litellm", "llamacpp", "lmstudio", "ollama", "omlx", "vllm"})
"""Servers that people run themselves; all of them speak `openai-compat`."""

PROVIDER_TYPES: Final = LOCAL_TYPES | {
    *("anthropic", "azure", "bedrock", "google", "google-vertex", "hyper"),
    *("openai", "openai-compat", "openrouter", "vercel"),
}
"""The types of providers that there are."""


def check_meaning(config: Config, layers: Layers[Source], known: Collection[str]) -> None:
    """Raise `ConfigInvalid` for the first provider or hook that cannot work.

    *known* are the providers of which everything but the key is known already.
    """
    for name, provider in config.providers.items():
        if problem := _provider_problem(provider, custom=name not in known):
            keys, expectation = problem
            raise _invalid(layers, ("providers", name, *keys), expectation)
    check_hooks(config, layers)


def check_hooks(config: Config, layers: Layers[Source]) -> None:
    """Raise `ConfigInvalid` for the first hook that cannot work (I11)."""
    for event, hooks in config.hooks.items():
        for index, hook in enumerate(hooks):
            if problem := _hook_problem(hook):
                keys, expectation = problem
                raise _invalid(layers, ("hooks", event, index, *keys), expectation)


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
    """Name the file that said it, or if nobody did, the one that said the most of what is around."""
    ways = (keys[:length] for length in range(len(keys), 0, -1))
    source = next(filter(None, (layers.origin(*way) for way in ways)), None)
    return ConfigInvalid.at("" if source is None else source.path, key_text(keys), expectation)


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


PRE_TOOL_USE: Final = "PreToolUse"
"""What the event is called where we say its name."""

Hooks = Mapping[str, Sequence[HookConfig]]
"""The hooks of a configuration, by event."""


def hooks_before_tools(hooks: Hooks) -> Iterator[HookConfig]:
    """Return the hooks that are run before a tool, in the order of the configuration."""
    return (each for event, listed in hooks.items() if _is_before_tools(event) for each in listed)


def unknown_events(events: Iterable[str]) -> Iterator[str]:
    """Return those of *events* at which nothing is ever run."""
    return (event for event in events if not _is_before_tools(event))


def _is_before_tools(event: str) -> bool:
    return event.replace("_", "").lower() == PRE_TOOL_USE.lower()
