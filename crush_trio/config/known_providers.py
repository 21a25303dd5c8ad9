"""Built-in providers, which need no configuration file: a key in the environment is enough.

The catalogue has the models; this table has the variables with a provider's key and address. Both
are templates, so that a variable that overrides an address needs no code. A provider that is in
this table but not in the catalogue can be used once one of its models is named or discovered.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import field, frozen

from crush_trio.wire.config import CatalogModel, CatalogProvider

DEMO_PROVIDER: Final = "demo"
"""The id of the offline demo, which answers where no model is configured."""

COMPATIBLE: Final = "openai-compat"


@frozen(kw_only=True)
class KnownProvider:
    """A provider that needs credentials only.

    `key` and `base_url` are templates.
    """

    id: str
    name: str
    type: str = COMPATIBLE
    key: str = ""
    base_url: str = ""
    address_variable: str = ""
    """The variable that overrides the address, if there is one."""
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    models: tuple[CatalogModel, ...] = field(default=(), repr=False)
    default_large: str = ""
    default_small: str = ""

    @property
    def address(self) -> str:
        """The template of the address, including the override."""
        if not self.address_variable:
            return self.base_url
        return f"${{{self.address_variable}:-{self.base_url}}}"


_TABLE: Final = (
    KnownProvider(
        id="anthropic",
        name="Anthropic",
        type="anthropic",
        key="$ANTHROPIC_API_KEY",
        base_url="https://api.anthropic.com",
        address_variable="ANTHROPIC_BASE_URL",
    ),
    KnownProvider(
        id="openai",
        name="OpenAI",
        type="openai",
        key="$OPENAI_API_KEY",
        base_url="https://api.openai.com/v1",
        address_variable="OPENAI_BASE_URL",
    ),
    KnownProvider(
        id="gemini",
        name="Google Gemini",
        type="google",
        key="${GEMINI_API_KEY:-$GOOGLE_API_KEY}",
        base_url="https://generativelanguage.googleapis.com",
    ),
    KnownProvider(
        id="openrouter",
        name="OpenRouter",
        type="openrouter",
        key="$OPENROUTER_API_KEY",
        base_url="https://openrouter.ai/api/v1",
    ),
    KnownProvider(
        id="groq",
        name="Groq",
        key="$GROQ_API_KEY",
        base_url="https://api.groq.com/openai/v1",
    ),
    KnownProvider(
        id="deepseek",
        name="DeepSeek",
        key="$DEEPSEEK_API_KEY",
        base_url="https://api.deepseek.com/v1",
    ),
    KnownProvider(
        id="mistral",
        name="Mistral",
        key="$MISTRAL_API_KEY",
        base_url="https://api.mistral.ai/v1",
    ),
    KnownProvider(
        id="xai",
        name="xAI",
        key="$XAI_API_KEY",
        base_url="https://api.x.ai/v1",
    ),
    KnownProvider(
        id="cerebras",
        name="Cerebras",
        key="$CEREBRAS_API_KEY",
        base_url="https://api.cerebras.ai/v1",
    ),
    KnownProvider(
        id="together",
        name="Together AI",
        key="$TOGETHER_API_KEY",
        base_url="https://api.together.xyz/v1",
    ),
    KnownProvider(
        id="fireworks",
        name="Fireworks AI",
        key="$FIREWORKS_API_KEY",
        base_url="https://api.fireworks.ai/inference/v1",
    ),
    KnownProvider(
        id="moonshot",
        name="Moonshot AI",
        key="$MOONSHOT_API_KEY",
        base_url="https://api.moonshot.ai/v1",
    ),
    KnownProvider(
        id="vercel",
        name="Vercel AI Gateway",
        type="vercel",
        key="${AI_GATEWAY_API_KEY:-$VERCEL_API_KEY}",
        base_url="https://ai-gateway.vercel.sh/v1",
    ),
    KnownProvider(
        id="azure",
        name="Azure OpenAI",
        type="azure",
        key="$AZURE_OPENAI_API_KEY",
        base_url="${AZURE_OPENAI_API_ENDPOINT:-$AZURE_OPENAI_ENDPOINT}",
    ),
)

BY_ENVIRONMENT: Final[Mapping[str, KnownProvider]] = {each.id: each for each in _TABLE}
"""The table by provider id."""


UNSUPPORTED: Final[Mapping[str, str]] = {
    "bedrock": "use type anthropic with a key of Anthropic's, or a LiteLLM proxy before Bedrock",
    "google-vertex": "use type google with a Gemini API key, or a LiteLLM proxy before Vertex",
    "hyper": "use the type of the provider whose models you want",
}
"""Types that configurations of Crush may have and that are not supported, and what to use instead."""

_UNSUPPORTED_KEYS: Final = {
    "AWS_BEARER_TOKEN_BEDROCK": "bedrock",
    "AWS_ACCESS_KEY_ID": "bedrock",
    "AWS_PROFILE": "bedrock",
    "VERTEXAI_PROJECT": "google-vertex",
    "HYPER_API_KEY": "hyper",
}
"""Variables with credentials of such providers."""


def unsupported_key(environment: Mapping[str, str]) -> str:
    """Return a sentence about a credential in *environment* that cannot be used; empty if there is none."""
    for variable, type_name in _UNSUPPORTED_KEYS.items():
        if environment.get(variable):
            advice = UNSUPPORTED[type_name]
            return f"{variable} is set, but the provider {type_name} is not supported; {advice}"
    return ""


def known_providers(catalogue: Iterable[CatalogProvider]) -> dict[str, KnownProvider]:
    """Return all built-in providers: those of *catalogue* first, in its order."""
    found = {each.id: _known(each) for each in catalogue}
    return found | {id_: each for id_, each in BY_ENVIRONMENT.items() if id_ not in found}


def _known(entry: CatalogProvider) -> KnownProvider:
    """Return an entry of the catalogue, completed from the table."""
    ours = BY_ENVIRONMENT.get(entry.id, KnownProvider(id=entry.id, name=entry.name))
    return KnownProvider(
        id=entry.id,
        name=entry.name or ours.name,
        type=entry.type or ours.type,
        key=entry.api_key or ours.key,
        base_url=entry.api_endpoint or ours.base_url,
        address_variable=ours.address_variable,
        headers=entry.default_headers,
        models=entry.models,
        default_large=entry.default_large_model_id,
        default_small=entry.default_small_model_id,
    )
