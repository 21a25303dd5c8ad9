r"""Changes to configuration files.

A change is a function from the content of a file to its new content. It is checked before it is
written: the new content is merged with all other files and checked, and if that fails, nothing is
written. Unknown keys of a file are kept.

Reading, checking and writing are one synchronous call, which also takes and releases the lock
between processes. So no lock is held over an `await`, and a cancelled caller cannot leave one
behind.

Keys are written with dots: `options.tui.compact_mode`. A dot inside a name is written `\.`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import trio
from attrs import frozen

from crush_trio.config.errors import ConfigInvalid, ConfigLocked, ConfigNotWritten
from crush_trio.config.files import OWN_KEY, parse_tree, read_tree, write_tree
from crush_trio.config.load import Draft, read_draft
from crush_trio.config.rules.rules import RULES_KEY, rule_id
from crush_trio.config.sources import (
    DataDir,
    Layers,
    Places,
    Source,
    SourceKind,
    Tree,
    real_path,
)
from crush_trio.config.template import Plain, TemplateError, escape, parse
from crush_trio.config.trust.answers import TrustedOnce, write_declined
from crush_trio.config.trust.wishes import Wishes
from crush_trio.errors import DecodeError, ProviderKeyInvalid
from crush_trio.private_files import LockHeld, locked, replace_file
from crush_trio.wire.asks import PermissionRule
from crush_trio.wire.codec import structure, unstructure
from crush_trio.wire.config import CatalogProvider, Config, OAuthToken, SelectedModel
from crush_trio.wire.converters import Mismatch, object_at, within
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import KeyKind, ModelType, Scope

T = TypeVar("T")

RECENT_LIMIT: Final = 5
"""How many recent models are kept for each slot (I5)."""

LOCK_PAUSE: Final = 0.05
LOCK_ATTEMPTS: Final = 100
"""How often, and how many seconds apart, a lock of another process is tried again."""

Edit: TypeAlias = Callable[[Tree, Config], Tree]
"""Given the content of the file to change and the configuration in use, returns the new content."""

_EVERYWHERE: Final = {SourceKind.SYSTEM, SourceKind.USER, SourceKind.DATA}
"""The files that count for all workspaces of the user."""

_STEP: Final = re.compile(r"((?:[^.\\]|\\.)+)(?:\.(?=.)|$)", re.DOTALL)


@frozen(kw_only=True)
class Change:
    """An edit, and the file it is for."""

    scope: Scope
    edit: Edit


# ── Kinds of changes ────────────────────────────────────────────────────────────────────────────


def set_value(scope: Scope, key: str, value: Json) -> Change:
    """Set *value* at a dotted key. Raises `ConfigInvalid` for a malformed key."""
    way = parse_key(key)
    return Change(scope=scope, edit=lambda tree, _config: _with(tree, way, value))


def remove_value(scope: Scope, key: str) -> Change:
    """Remove the value at a dotted key, if there is one."""
    way = parse_key(key)
    return Change(scope=scope, edit=lambda tree, _config: _without(tree, way))


def set_model(scope: Scope, model_type: ModelType, model: SelectedModel) -> Change:
    """Select a model, and put it first among the recent ones."""
    chosen = unstructure(model)

    def edit(tree: Tree, config: Config) -> Tree:
        others = (
            each
            for each in config.recent_models.get(model_type, ())
            if (each.provider, each.model) != (model.provider, model.model)
        )
        recent = [chosen, *map(unstructure, others)][:RECENT_LIMIT]
        tree = _with(tree, ("models", model_type.value), chosen)
        return _with(tree, ("recent_models", model_type.value), recent)

    return Change(scope=scope, edit=edit)


def set_compact_mode(scope: Scope, enabled: bool) -> Change:
    """Make the terminal client compact, or not."""
    return set_value(scope, "options.tui.compact_mode", enabled)


def set_provider_key(scope: Scope, provider_id: str, kind: str, api_key: Json) -> Change:
    """Set a provider's key or token; each replaces the other.

    Raises `ProviderKeyInvalid` for an unknown kind, or a key that does not fit its kind.
    """
    if not provider_id:
        raise ProviderKeyInvalid("expected the id of a provider")
    way = ("providers", provider_id)
    if kind == KeyKind.STRING and isinstance(api_key, str):
        name, other, api_key = "api_key", "oauth", _typed_key(api_key)
    elif kind == KeyKind.OAUTH and _is_token(api_key):
        name, other = "oauth", "api_key"
    else:
        raise ProviderKeyInvalid("expected text of kind 'string' or a token of kind 'oauth'")

    def edit(tree: Tree, _config: Config) -> Tree:
        return _with(_without(tree, (*way, other)), (*way, name), api_key)

    return Change(scope=scope, edit=edit)


def _typed_key(text: str) -> str:
    """Return a key that a person has entered, as a file has it; raise `ProviderKeyInvalid`.

    Space around it comes from pasting. `$NAME` and `$(command)` alone say where the key is; in any other key
    a `$` is a part of it.
    """
    key = text.strip()
    with suppress(TemplateError):
        if not any(isinstance(piece, Plain) for piece in parse(key).pieces):
            return key
    if not (key.isascii() and key.isprintable()):
        raise ProviderKeyInvalid(
            "it has a line break or another character that no key has; copy it again, and only it"
        )
    return escape(key)


def scope_of_key(
    scope: Scope, provider_id: str, layers: Layers[Source], known: Collection[str]
) -> Scope:
    """Return the scope whose file a provider's key belongs into; raises `ProviderKeyInvalid`.

    A key for all workspaces belongs to this one alone if the project decides about the provider: if its
    files set a key, which would override that of the user, or if no other file describes the provider.
    *known* are the built-in providers.
    """
    way = ("providers", provider_id)
    below = Layers(tuple(each for each in layers.layers if each.source.kind in _EVERYWHERE))
    above = Layers(tuple(each for each in layers.layers if each.source.kind not in _EVERYWHERE))
    described = provider_id in known or below.origin(*way, "base_url") is not None
    if not described and above.origin(*way, "base_url") is None:
        raise ProviderKeyInvalid(
            f"no provider {provider_id!r} is built in or configured; describe it in crush.json with "
            "base_url and models, then set its key"
        )
    overridden = any(above.origin(*way, name) is not None for name in ("api_key", "oauth"))
    return scope if described and not overridden else Scope.WORKSPACE


_TRUSTED: Final = (OWN_KEY, "trusted_directories")


def trust_directory(directory: Path) -> Change:
    """Trust the files below *directory*, an absolute path; in the user's file, not the workspace's."""

    def edit(tree: Tree, _config: Config) -> Tree:
        trusted = _listed(tree)
        if str(directory) in trusted:
            return tree
        return _with(tree, _TRUSTED, [*trusted, str(directory)])

    return Change(scope=Scope.GLOBAL, edit=edit)


def distrust_directory(directory: Path, places: Places) -> Change:
    """Remove *directory*, a resolved path, from the trusted ones in the user's file."""

    def edit(tree: Tree, _config: Config) -> Tree:
        trusted = _listed(tree)
        kept = [each for each in trusted if real_path(places.expand_home(each)) != directory]
        return tree if kept == trusted else _with(tree, _TRUSTED, kept)

    return Change(scope=Scope.GLOBAL, edit=edit)


def add_rules(rules: Sequence[PermissionRule]) -> Change:
    """Add permission rules to the user's file, except those that it has already."""

    def edit(tree: Tree, _config: Config) -> Tree:
        old = _rules_in(tree)
        known = set(map(_id_of, old))
        new = {rule_id(rule): unstructure(rule) for rule in rules}
        more = [written for each, written in new.items() if each not in known]
        return _with(tree, RULES_KEY, [*old, *more]) if more else tree

    return Change(scope=Scope.GLOBAL, edit=edit)


def remove_rule(wanted: str) -> Change:
    """Remove the permission rule with this id from the user's file, if it is there."""

    def edit(tree: Tree, _config: Config) -> Tree:
        old = _rules_in(tree)
        kept = [each for each in old if _id_of(each) != wanted]
        return tree if len(kept) == len(old) else _with(tree, RULES_KEY, kept)

    return Change(scope=Scope.GLOBAL, edit=edit)


def _rules_in(tree: Tree) -> list[Json]:
    found = _at(tree, RULES_KEY)
    return found if isinstance(found, list) else []


def _id_of(written: Json) -> str:
    """Return the id of a rule in a file; empty for what is no rule."""
    try:
        return rule_id(structure(written, PermissionRule))
    except DecodeError:
        return ""


def _listed(tree: Tree) -> list[Json]:
    found = _at(tree, _TRUSTED)
    return found if isinstance(found, list) else []


def parse_key(key: str) -> tuple[str, ...]:
    r"""Return the names in a dotted key; `\.` is a dot within a name, `\\` a backslash."""
    steps = []
    place = 0
    while found := _STEP.match(key, place):
        steps.append(re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL))
        place = found.end()
    if not steps or place != len(key):
        raise ConfigInvalid.at("", "key", "expected names with dots between them")
    return tuple(steps)


# ── Writing a change ────────────────────────────────────────────────────────────────────────────


async def write_change(
    change: Change,
    *,
    places: Places,
    data_dir: DataDir,
    config: Config,
    catalogue: Sequence[CatalogProvider] = (),
    once: TrustedOnce | None = None,
) -> Draft | None:
    """Write a change and return the new draft; None if it changes nothing.

    The file is replaced atomically, or left unchanged: `ConfigInvalid` if the result is not valid,
    `ConfigNotWritten` if the disk refuses, `ConfigLocked` if another process keeps the lock.
    """
    path = places.data_file if change.scope is Scope.GLOBAL else places.workspace_file
    attempt = partial(_rewrite, path, change.edit, config, places, data_dir, catalogue, once)
    return await _with_retries(attempt, path)


async def decline_wishes(wishes: Wishes, places: Places) -> None:
    """Record that the user would not trust a project with these wishes.

    Raises `ConfigNotWritten` or `ConfigLocked`, as `write_change` does.
    """
    path = places.declined_file

    def attempt() -> None:
        try:
            write_declined(path, wishes)
        except OSError as error:
            raise ConfigNotWritten(f"{path}: {error.strerror}") from None

    await _with_retries(attempt, path)


async def _with_retries(attempt: Callable[[], T], path: Path) -> T:
    """Retry until the lock is free. The kernel's own wait for a lock could not be cancelled."""
    await trio.lowlevel.checkpoint()
    for _ in range(LOCK_ATTEMPTS):
        try:
            return await trio.to_thread.run_sync(attempt)
        except LockHeld:
            await trio.sleep(LOCK_PAUSE)
    raise ConfigLocked(str(path))


def _rewrite(
    path: Path,
    edit: Edit,
    config: Config,
    places: Places,
    data_dir: DataDir,
    catalogue: Sequence[CatalogProvider],
    once: TrustedOnce | None,
) -> Draft | None:
    try:
        with locked(path):
            # The user's own file may be a link, as in a directory of dot files. In a checkout, one
            # would copy the content of another file into the project.
            plain = None if path == places.data_file else real_path(path.parent) / path.name
            before = read_tree(path, plain) or {}
            after = edit(before, config)
            if after == before:
                return None
            data = write_tree(after)
            overlay = {path: parse_tree(data, path)}  # checked exactly as it will be read
            draft = read_draft(
                places, catalogue=catalogue, data_dir=data_dir, overlay=overlay, once=once
            )
            if draft.skipped:
                now = read_draft(places, catalogue=catalogue, data_dir=data_dir, once=once)
                _refuse_incomplete(draft, now)
            replace_file(path, data)
            return draft
    except Mismatch as mismatch:
        raise ConfigInvalid.at(path, "", mismatch.text()) from None
    except OSError as error:
        raise ConfigNotWritten(f"{path}: {error.strerror}") from None


def _refuse_incomplete(draft: Draft, now: Draft) -> None:
    """Raise `ConfigInvalid` if *draft* leaves out an entry that is not left out *now*."""
    for each in draft.skipped:
        if each not in now.skipped:
            raise ConfigInvalid.at("" if each.file is None else each.file, each.key, each.text)


# ── Trees ───────────────────────────────────────────────────────────────────────────────────────


def _with(tree: Tree, way: tuple[str, ...], value: Json) -> Tree:
    first, *rest = way
    if not rest:
        return {**tree, first: value}
    with within(first):
        return {**tree, first: _with(object_at(tree.get(first)), tuple(rest), value)}


def _without(tree: Tree, way: tuple[str, ...]) -> Tree:
    first, *rest = way
    inner = tree.get(first)
    if not rest:
        return {key: value for key, value in tree.items() if key != first}
    if not isinstance(inner, Mapping):
        return tree
    return {**tree, first: _without(inner, tuple(rest))}


def _at(tree: Tree, way: tuple[str, ...]) -> Json:
    value: Json = tree
    for step in way:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _is_token(value: Json) -> bool:
    try:
        return bool(isinstance(value, Mapping) and structure(value, OAuthToken).access_token)
    except DecodeError:
        return False
