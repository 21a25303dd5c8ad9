"""Models and who provides them: the catalogue, a selection from it, and the keys to use it."""

from collections.abc import Mapping

from attrs import field, frozen

from crush_trio.wire.fields import Json, JsonObject, OmitEmpty


@frozen(kw_only=True)
class ModelOptions:
    """Settings a model is called with. None leaves the choice to the provider; 0 is a choice."""

    temperature: OmitEmpty[float | None] = None
    top_p: OmitEmpty[float | None] = None
    top_k: OmitEmpty[int | None] = None
    frequency_penalty: OmitEmpty[float | None] = None
    presence_penalty: OmitEmpty[float | None] = None
    provider_options: OmitEmpty[JsonObject] = field(factory=dict)


@frozen(kw_only=True)
class CatalogModel:
    """A model that can be selected; costs are dollars per million tokens."""

    id: str = ""
    name: str = ""
    cost_per_1m_in: float = 0
    cost_per_1m_out: float = 0
    cost_per_1m_in_cached: float = 0
    cost_per_1m_out_cached: float = 0
    context_window: int = 0
    default_max_tokens: int = 0
    can_reason: bool = False
    reasoning_levels: OmitEmpty[tuple[str, ...]] = ()
    default_reasoning_effort: OmitEmpty[str] = ""
    supports_attachments: bool = False
    options: OmitEmpty[ModelOptions | None] = None


@frozen(kw_only=True)
class SelectedModel:
    """A model as someone chose it: which one, whose, and with what settings."""

    model: str = ""
    provider: str = ""
    reasoning_effort: OmitEmpty[str] = ""
    think: OmitEmpty[bool] = False
    max_tokens: OmitEmpty[int] = 0
    temperature: OmitEmpty[float | None] = None
    top_p: OmitEmpty[float | None] = None
    top_k: OmitEmpty[int | None] = None
    frequency_penalty: OmitEmpty[float | None] = None
    presence_penalty: OmitEmpty[float | None] = None
    provider_options: OmitEmpty[JsonObject] = field(factory=dict)


@frozen(kw_only=True)
class CatalogProvider:
    """A provider of the catalogue. `api_key` is a template that names a variable, not a key."""

    name: str
    id: str
    api_key: OmitEmpty[str] = ""
    api_endpoint: OmitEmpty[str] = ""
    type: OmitEmpty[str] = ""
    default_large_model_id: OmitEmpty[str] = ""
    default_small_model_id: OmitEmpty[str] = ""
    models: OmitEmpty[tuple[CatalogModel, ...]] = ()
    default_headers: OmitEmpty[Mapping[str, str]] = field(factory=dict)


@frozen(kw_only=True)
class OAuthClient:
    """The client a token was issued to."""

    client_id: OmitEmpty[str] = ""
    client_secret: OmitEmpty[str] = field(default="", repr=False)
    auth_url: OmitEmpty[str] = ""
    token_url: OmitEmpty[str] = ""
    auth_style: OmitEmpty[Json] = None


@frozen(kw_only=True)
class OAuthToken:
    """Access to an account until `expires_at`, unix seconds. Its secrets stay out of `repr`."""

    access_token: str = field(repr=False)
    refresh_token: OmitEmpty[str] = field(default="", repr=False)
    expires_in: int = 0
    expires_at: int = 0
    client: OmitEmpty[OAuthClient | None] = None


@frozen(kw_only=True)
class TokenImport:
    """A token found in another program's files; null and false when there was none."""

    token: OAuthToken | None
    success: bool
