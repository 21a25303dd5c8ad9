"""What a project cannot say until the user trusts it, taken out before anybody acts on it.

Four things in a configuration are worth more than they look. The variables of `env` decide which
program a name stands for. A tool in `permissions.allowed_tools` is used without a question. A hook is a
command that is run, and a list of hooks takes the place of the user's own. And whoever decides where the
requests to a provider go, and what goes along, gets the key they are sent with. So a file that came with
a project nobody vouches for has no say in the first three, and in the fourth only if nothing is sent that
came from somebody else. A notice says so, and how to trust the file.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import evolve, frozen

from crush_trio.config.environment import KnownProvider
from crush_trio.config.expander import Keys, key_text
from crush_trio.config.merge import Layer, Layers, Tree
from crush_trio.config.notices import Notice, NoticeKind
from crush_trio.config.sources import Places, Source

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
