"""The model of a run: which one, on whose account, and how to reach it.

Chosen anew when a run begins, from the configuration as it is then. A prompt that waited in a queue
runs on what was selected meanwhile (L29, L40).
"""

from typing import Protocol

from attrs import field, frozen

from crush_trio.providers.base import Provider
from crush_trio.wire.catalog import CatalogModel, SelectedModel
from crush_trio.wire.requests import ModelType


@frozen(kw_only=True)
class ChosenModel:
    """A model that can be asked.

    `flat_rate` providers cost nothing per token. `media_results` says whether pictures may stand
    in the results of tools; elsewhere they have to follow in a message of the user's (D23b).
    """

    provider: Provider = field(repr=False)
    model: CatalogModel
    selected: SelectedModel
    flat_rate: bool = False
    media_results: bool = False
    system_prompt_prefix: str = ""

    @property
    def provider_id(self) -> str:
        """The provider's name in the configuration."""
        return self.selected.provider

    @property
    def max_tokens(self) -> int:
        """The limit of one answer: what was selected, or what the catalogue has; 0 for none."""
        return self.selected.max_tokens or self.model.default_max_tokens


class ModelSource(Protocol):
    """Where models come from: the configuration, or a test."""

    async def choose(self, slot: ModelType, instead: SelectedModel | None = None) -> ChosenModel:
        """Return the model of *slot* as it is configured now, or the one that is wanted *instead*.

        Raises a `CrushError` if there is none.
        """
        ...
