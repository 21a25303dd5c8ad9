"""`Wishes`: what the files of an untrusted project want to do; and layers without those values.

A checkout can contain anything, so these things in its files count only once the user trusts it:
models and providers, which decide who reads the conversation and what the agent does next; commands
and variables of the user in values (`$(command)`, `$NAME`); the
variables of `env`, which decide which program a command name means; hooks, MCP servers and language
servers, which are programs that are run; tools that are used without asking, or although the user
has disabled them; and paths outside of the project.

Most of these values are taken out of the layers, with a warning each. The entries of `mcp` and `lsp`
stay, because clients are shown their state, but they are not started. Paths stay and are confined to
the project when they are used.

A wish is one of these things in words, for the user who decides. Its text comes from the project, so
control characters are removed and the length is limited. It holds no values of keys, headers or
variables: a file in the data directory may have been written by the user.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

import orjson
from attrs import evolve, frozen

from crush_trio.config.errors import ConfigWarning, ConfigWarningKind, printable
from crush_trio.config.expander import PATHS, Keys, key_text
from crush_trio.config.redaction import redact_text
from crush_trio.config.rules.rules import RULES_KEY
from crush_trio.config.sources import Layer, Layers, Places, Project, Source, Tree
from crush_trio.config.template import Command, TemplateError, Variable, parse
from crush_trio.wire.fields import Json

TEXT_LIMIT: Final = 200
"""The most bytes of the text of one wish."""


class WishKind(StrEnum):
    """What a wish is about; the most dangerous first."""

    COMMAND = "command"
    ENVIRONMENT = "environment"
    HOOK = "hook"
    MCP = "mcp"
    LSP = "lsp"
    TOOLS = "tools"
    PROVIDER = "provider"
    MODEL = "model"
    PATH = "path"


SUMMARIES: Final[Mapping[WishKind, str]] = {
    WishKind.COMMAND: "run commands",
    WishKind.ENVIRONMENT: "set environment variables",
    WishKind.HOOK: "run hooks",
    WishKind.MCP: "use MCP servers",
    WishKind.LSP: "use language servers",
    WishKind.TOOLS: "decide about tools and permissions",
    WishKind.PROVIDER: "choose providers",
    WishKind.MODEL: "choose models",
    WishKind.PATH: "use paths outside of itself",
}
"""Each kind in a few words, for one line about all wishes."""


@frozen(kw_only=True)
class Wish:
    """One thing that a file of an untrusted project wants to do."""

    kind: WishKind
    file: Path
    key: str
    text: str
    """What would happen, as the end of the sentence "the project wants to …"."""


@frozen(kw_only=True)
class Wishes:
    """Everything that the files of an untrusted project want; there is at least one wish.

    `directory` is the one to trust: the highest directory of the project with such a file. `digest`
    stands for the content of its untrusted files.
    """

    directory: Path
    digest: str
    items: tuple[Wish, ...]
    declined: bool = False
    """Whether the user would not trust exactly this content."""

    @property
    def summary(self) -> str:
        """The kinds of the wishes, in words."""
        return ", ".join(SUMMARIES[kind] for kind in self.kinds)

    @property
    def kinds(self) -> tuple[WishKind, ...]:
        """The kinds of the wishes, the most dangerous first."""
        found = {wish.kind for wish in self.items}
        return tuple(kind for kind in WishKind if kind in found)

    @property
    def command(self) -> str:
        """The command that trusts the directory."""
        return f"crush-trio trust {shlex.quote(str(self.directory))}"

    def lines(self, most: int) -> Iterator[str]:
        """Yield the wishes as text, at most *most* of each kind, so that none hides another."""
        for kind in self.kinds:
            texts = [wish.text for wish in self.items if wish.kind is kind]
            yield from texts[:most]
            if len(texts) > most:
                yield f"{SUMMARIES[kind]}: {len(texts) - most} more"


@frozen(kw_only=True)
class TrustedLayers:
    """The layers without the values that were ignored, and the warnings about those."""

    layers: Layers[Source]
    warnings: tuple[ConfigWarning, ...] = ()


# ── Values that are ignored ──────────────────────────────────────────────────────────────────────

_IGNORED: Final = ("models", "recent_models", "providers", "env", "hooks")
"""The sections that count only in trusted files."""

_NO_DEFAULTS: Final = "disable_default_providers"

_DISABLING: Final = ("disabled_tools", "disabled_skills")
"""The options whose lists restrict the agent; a list of a later file replaces that of an earlier one."""

_Disabled: TypeAlias = Mapping[str, frozenset[str]]


def remove_untrusted(layers: Layers[Source]) -> TrustedLayers:
    """Return *layers* without the values that untrusted files may not set."""
    kept: list[Layer[Source]] = []
    warnings: list[ConfigWarning] = []
    disabled = _disabled(layers)
    for layer in layers.layers:
        source, tree = layer.source, layer.tree
        for way in () if source.may_run else tuple(_ignored_keys(tree, disabled)):
            tree = _without(tree, way)
            warnings.append(_ignored(source, way))
        kept.append(evolve(layer, tree=tree))
    return TrustedLayers(layers=Layers(tuple(kept)), warnings=tuple(warnings))


def _ignored_keys(tree: Tree, disabled: _Disabled) -> Iterator[tuple[str, ...]]:
    """Yield the keys in an untrusted file that it may not set."""
    yield from ((section,) for section in _IGNORED if section in tree)
    yield from (("permissions", key) for key in _permissions(tree))
    if _NO_DEFAULTS in _object(tree, "options"):
        yield ("options", _NO_DEFAULTS)
    yield from (("options", option) for option, _ in _enabled_again(tree, disabled))


def _permissions(tree: Tree) -> Tree:
    """Return the permissions of a file but its rules, which no project can have, trusted or not."""
    found = _object(tree, "permissions")
    return {key: value for key, value in found.items() if key != RULES_KEY[1]}


def _disabled(layers: Layers[Source]) -> _Disabled:
    """Return what the trusted files disable, by option."""
    trusted = Layers(tuple(each for each in layers.layers if each.source.may_run))
    options = _object(trusted.tree(), "options")
    return {option: frozenset(options.get(option) or ()) for option in _DISABLING}


def _enabled_again(tree: Tree, disabled: _Disabled) -> Iterator[tuple[str, list[str]]]:
    """Yield the options with which a file would enable what trusted files disable, and what that is."""
    options = _object(tree, "options")
    for option in _DISABLING:
        if option in options and (names := disabled[option] - set(options[option] or ())):
            yield option, sorted(names)


def _ignored(source: Source, way: Keys) -> ConfigWarning:
    return ConfigWarning(
        kind=ConfigWarningKind.NOT_TRUSTED,
        file=source.path,
        key=key_text(way),
        text=f"ignored, {source.how_to_trust}",
    )


# ── Wishes ───────────────────────────────────────────────────────────────────────────────────────


def find_wishes(layers: Layers[Source], places: Places, project: Project) -> Wishes | None:
    """Return what the untrusted files among *layers* want; None if they want nothing.

    *layers* are complete, before `remove_untrusted`. Reads the disk, to resolve paths.
    """
    untrusted = [layer for layer in layers.layers if not layer.source.may_run]
    disabled = _disabled(layers)
    items = [wish for layer in untrusted for wish in _wishes(layer, disabled, places, project)]
    if not items:
        return None
    return Wishes(
        directory=min((_home_of(each.file, project) for each in items), key=_depth),
        digest=_digest(untrusted),
        items=tuple(items),
    )


def _home_of(file: Path, project: Project) -> Path:
    """Return the deepest directory of the project that contains *file*."""
    around = [each for each in project.directories if file.is_relative_to(each)]
    return around[-1] if around else file.parent


def _depth(directory: Path) -> int:
    return len(directory.parts)


def _digest(layers: Iterable[Layer[Source]]) -> str:
    """Return a digest of the content of files; the layout of their JSON does not matter."""
    digest = sha256()
    for layer in layers:
        for part in (os.fsencode(layer.source.path), _canonical(layer.tree)):
            digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def _canonical(tree: Tree) -> bytes:
    return orjson.dumps(dict(tree), option=orjson.OPT_SORT_KEYS)


def _wishes(
    layer: Layer[Source], disabled: _Disabled, places: Places, project: Project
) -> Iterator[Wish]:
    """Yield the wishes of one file."""
    tree = layer.tree
    said = (
        *_expansions(tree),
        *_programs(tree),
        *_choices(tree, disabled),
        *_paths(tree, places, project),
    )
    for kind, keys, text in said:
        yield Wish(
            kind=kind,
            file=layer.source.path,
            key=printable(key_text(keys), TEXT_LIMIT),
            text=printable(redact_text(text), TEXT_LIMIT),
        )


_Said: TypeAlias = Iterator[tuple[WishKind, Keys, str]]


_TEMPLATES: Final = (
    ("env", WishKind.ENVIRONMENT),
    ("providers", WishKind.PROVIDER),
    ("mcp", WishKind.MCP),
    ("lsp", WishKind.LSP),
)
"""The sections with values that may run commands and read variables; see `expander.TEMPLATES`."""


def _expansions(tree: Tree) -> _Said:
    """Yield the commands that the values of the file run, and the variables of the user they read.

    Without these wishes, trusting the choice of a provider would run the command in its key.
    """
    for section, kind in _TEMPLATES:
        for name, entry in _object(tree, section).items():
            used = [each for text in _texts(entry) for each in _expansions_in(text)]
            for each in used:
                if isinstance(each, Command):
                    yield WishKind.COMMAND, (section, name), f"run a command: {each.text}"
            variables = dict.fromkeys(each.name for each in used if isinstance(each, Variable))
            if variables:
                listed = ", ".join(variables)
                yield kind, (section, name), f"use your variables for {name}: {listed}"


def _texts(value: Json) -> Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _expansions_in(text: str) -> Iterator[Variable | Command]:
    try:
        yield from parse(text).expansions()
    except TemplateError:  # never filled in
        return


def _programs(tree: Tree) -> _Said:
    """Yield what the file wants to be run, and with which variables."""
    if names := _object(tree, "env"):
        yield WishKind.ENVIRONMENT, ("env",), f"set environment variables: {', '.join(names)}"
    for event, hooks in _object(tree, "hooks").items():
        for index, hook in enumerate(hooks or [{}]):
            text = f"run a hook: {hook['command']}" if hook.get("command") else "remove hooks"
            yield WishKind.HOOK, ("hooks", event, index), text
    for name, entry in _object(tree, "mcp").items():
        yield WishKind.MCP, ("mcp", name), _server("MCP server", name, entry)
    for name, entry in _object(tree, "lsp").items():
        yield WishKind.LSP, ("lsp", name), _server("language server", name, entry)


def _server(what: str, name: str, entry: Json) -> str:
    entry = entry or {"disabled": True}
    if entry.get("disabled"):
        return f"switch off the {what} {name}"
    if entry.get("command"):
        program = " ".join([entry["command"], *(entry.get("args") or ())])
        return f"run the {what} {name}: {program}"
    if entry.get("url"):
        return f"connect to the {what} {name} at {entry['url']}"
    return f"change the {what} {name}"


def _choices(tree: Tree, disabled: _Disabled) -> _Said:
    """Yield what the file wants to decide for the agent: permissions, providers, models."""
    for key, value in _permissions(tree).items():
        listed = ", ".join(value) if _is_texts(value) else "see the file"
        text = f"change permissions ({key}): {listed}"
        if key == "allowed_tools":
            text = f"let the agent use tools without asking: {listed}"
        yield WishKind.TOOLS, ("permissions", key), text
    for option, names in _enabled_again(tree, disabled):
        text = f"use what you have disabled ({option}): {', '.join(names)}"
        yield WishKind.TOOLS, ("options", option), text
    for name, entry in _object(tree, "providers").items():
        yield WishKind.PROVIDER, ("providers", name), _provider(name, entry)
    if _NO_DEFAULTS in _object(tree, "options"):
        yield WishKind.PROVIDER, ("options", _NO_DEFAULTS), "choose which providers can be used"
    for slot, choice in _object(tree, "models").items():
        chosen = choice or {}
        model = f"{chosen.get('provider') or '?'}/{chosen.get('model') or '?'}"
        yield WishKind.MODEL, ("models", slot), f"choose the {slot} model: {model}"


def _provider(name: str, entry: Json) -> str:
    entry = entry or {"disable": True}
    if entry.get("disable"):
        return f"switch off the provider {name}"
    if entry.get("base_url"):
        return f"send conversations to the provider {name} at {entry['base_url']}"
    return f"change the provider {name}"


def _paths(tree: Tree, places: Places, project: Project) -> _Said:
    """Yield the paths of the file that lead out of the project, or may."""
    options = _object(tree, "options")
    for option in PATHS:
        for index, text in enumerate(options.get(option) or ()):
            if text.startswith("$") or not _inside(text, places, project):
                yield WishKind.PATH, ("options", option, index), f"read {text} ({option})"
    data = options.get("data_directory")
    if data and not _inside(data, places, project):
        text = f"keep its data in {data}, from the next time it is opened"
        yield WishKind.PATH, ("options", "data_directory"), text


def _inside(text: str, places: Places, project: Project) -> bool:
    return project.contains(project.directory / places.expand_home(text))


# ── Trees, whose types have been checked ─────────────────────────────────────────────────────────


def _is_texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _object(tree: Tree, key: str) -> Tree:
    """Return the object at *key*; an empty one if there is none."""
    inner = tree.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _without(tree: Tree, way: tuple[str, ...]) -> Tree:
    first, *rest = way
    if rest:
        return {**tree, first: _without(tree[first], tuple(rest))}
    return {key: value for key, value in tree.items() if key != first}
