"""Which providers can be used, and with what: the files, the catalogue and the environment together.

Those that a file names come first, in the order of the files, then those whose key was found in the
environment, in the order of the catalogue: what somebody wrote down goes before what merely happens to
be set. The first one is where the default model comes from.

Keys and addresses are carried as templates. Nothing is run here, and no value is kept.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from attrs import evolve, frozen

from crush_trio.config.environment import COMPATIBLE, KnownProvider
from crush_trio.config.expander import Expander, key_text
from crush_trio.config.notices import Notice, NoticeKind
from crush_trio.wire.catalog import CatalogModel
from crush_trio.wire.config import Config, ProviderConfig

Known: TypeAlias = Mapping[str, KnownProvider]


@frozen(kw_only=True)
class EnabledProvider:
    """A provider that can be used, all that is known of it in one value; templates are not filled in."""

    config: ProviderConfig
    known: bool = False
    default_large: str = ""
    default_small: str = ""

    def model(self, model_id: str) -> CatalogModel | None:
        """Return the model of this id; where models are found out later, any name may be one."""
        for model in self.config.models:
            if model.id == model_id:
                return model
        if model_id and self.config.discover_models:
            return CatalogModel(id=model_id, name=model_id)
        return None

    @property
    def large_model(self) -> CatalogModel | None:
        """The model to use if nobody chose one: the catalogue's choice, or the first there is."""
        models = self.config.models
        return self._listed(self.default_large) or (models[0] if models else None)

    @property
    def small_model(self) -> CatalogModel | None:
        """The model the catalogue suggests for side work, if it does and the model is there."""
        return self._listed(self.default_small)

    def _listed(self, model_id: str) -> CatalogModel | None:
        return next((model for model in self.config.models if model.id == model_id), None)


@frozen(kw_only=True)
class Enabling:
    """The providers that can be used, and why some cannot."""

    providers: Mapping[str, EnabledProvider]
    notices: tuple[Notice, ...] = ()


def enable_providers(config: Config, known: Known, expander: Expander) -> Enabling:
    """Return the providers of *config* and those of *known* whose credentials are there."""
    providers: dict[str, EnabledProvider] = {}
    notices: list[Notice] = []
    for name, entry in config.providers.items():
        built_in = known.get(name)
        provider = _named(name, entry, built_in)
        if entry.disable:
            continue
        if _has_credentials(provider, built_in, expander):
            providers[name] = provider
            notices += _redirections(name, entry, expander)
        elif built_in is not None:
            notices.append(_no_credentials(name, built_in, expander))
    for name, built_in in known.items():
        if name in config.providers or not (built_in.key or built_in.needs):
            continue
        provider = _named(name, ProviderConfig(), built_in)
        if _has_credentials(provider, built_in, expander):
            providers[name] = provider
    return Enabling(providers=providers, notices=tuple(notices))


def _named(name: str, entry: ProviderConfig, built_in: KnownProvider | None) -> EnabledProvider:
    """Complete what a file says of a provider by what is known of it."""
    if built_in is None:
        config = evolve(entry, id=name, name=entry.name or name, type=entry.type or COMPATIBLE)
        return EnabledProvider(config=config)
    models = _with_catalogue(entry.models, built_in.models)
    config = evolve(
        entry,
        id=name,
        name=entry.name or built_in.name,
        type=entry.type or built_in.type,
        api_key=entry.api_key or built_in.key,
        base_url=entry.base_url or built_in.address,
        extra_headers={**built_in.headers, **entry.extra_headers},
        models=models,
        discover_models=entry.discover_models if models else entry.discover_models is not False,
    )
    return EnabledProvider(
        config=config,
        known=True,
        default_large=built_in.default_large,
        default_small=built_in.default_small,
    )


def _with_catalogue(
    own: tuple[CatalogModel, ...], catalogue: tuple[CatalogModel, ...]
) -> tuple[CatalogModel, ...]:
    """Return the models of a file, then those of the catalogue that the file does not replace."""
    replaced = {model.id for model in own}
    return (*own, *(model for model in catalogue if model.id not in replaced))


def _has_credentials(
    provider: EnabledProvider, built_in: KnownProvider | None, expander: Expander
) -> bool:
    """Whether a built-in provider has a key and an address; a custom one may need no key.

    A custom one is without an address only where the address was not for its file to say.
    """
    config = provider.config
    if built_in is None:
        return bool(config.base_url)
    way = ("providers", config.id)
    if config.base_url and not expander.may_yield(config.base_url, *way, "base_url"):
        return False
    if config.oauth is not None or (
        config.api_key and expander.may_yield(config.api_key, *way, "api_key")
    ):
        return True
    if built_in.needs:
        return any(all(map(expander.environment.get, needed)) for needed in built_in.needs)
    return not config.api_key


def _no_credentials(name: str, built_in: KnownProvider, expander: Expander) -> Notice:
    source = expander.layers.origin("providers", name)
    wanted = [text for text in (built_in.key, built_in.address) if "$" in text]
    wanted += [" and ".join(needed) for needed in built_in.needs]
    return Notice(
        kind=NoticeKind.NO_CREDENTIALS,
        file=None if source is None else source.path,
        key=key_text(("providers", name)),
        text=f"not used: its key or address is empty; set them here, or {' or '.join(wanted)}",
    )


def _redirections(name: str, entry: ProviderConfig, expander: Expander) -> Iterator[Notice]:
    """Tell that a project decides where the requests to a provider of its own go."""
    source = expander.layers.origin("providers", name, "base_url")
    if entry.base_url and source is not None and not source.may_run:
        yield Notice(
            kind=NoticeKind.REDIRECTED,
            file=source.path,
            key=key_text(("providers", name, "base_url")),
            text="this file came with the project, and decides where requests are sent",
        )
