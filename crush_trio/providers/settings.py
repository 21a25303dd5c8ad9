"""How a model is to be called: what the catalogue, the provider and the user say, in that order.

Later ones win. None means that the provider decides; 0 is a choice.
"""

from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from crush_trio.providers.base import Endpoint, ModelRequest
from crush_trio.wire.catalog import ModelOptions
from crush_trio.wire.fields import JsonObject


@frozen(kw_only=True)
class Sampling:
    """How the next token is picked."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None

    def given(self, *names: str) -> dict[str, float]:
        """Return those of *names* that somebody chose."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def sampling_of(request: ModelRequest) -> Sampling:
    """Return what the user chose, and what the catalogue has for the rest."""
    usual = request.model.options or ModelOptions()
    return Sampling(
        **{
            name: own
            if (own := getattr(request.chosen, name)) is not None
            else getattr(usual, name)
            for name in asdict(Sampling())
        }
    )


def effort_of(request: ModelRequest) -> str:
    """Return how hard the model is to think: what the user chose, if the model has that level.

    Else the model's own default, else its first level; nothing for a model without levels.
    """
    model = request.model
    levels = model.reasoning_levels if model.can_reason else ()
    wanted = (request.chosen.reasoning_effort, model.default_reasoning_effort, *levels)
    return next((level for level in wanted if level in levels), "")


def options_of(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    """Return the options that only this provider knows: catalogue < provider < user."""
    usual = request.model.options or ModelOptions()
    return merged(usual.provider_options, endpoint.options, request.chosen.provider_options)


def model_id(request: ModelRequest) -> str:
    """Return the name that the provider knows the model by."""
    return request.model.id or request.chosen.model


def merged(*layers: JsonObject) -> dict[str, Any]:
    """Return one object of several; objects within are merged, everything else is replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result
