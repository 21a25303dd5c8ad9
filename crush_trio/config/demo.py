"""The provider that is there when nothing is configured: offline, without a key, and useful for a look."""

from typing import Final

from crush_trio.wire.catalog import CatalogModel, SelectedModel
from crush_trio.wire.config import ProviderConfig

DEMO_PROVIDER: Final = "demo"
DEMO_MODEL: Final = CatalogModel(
    id="demo", name="Offline demo", context_window=200_000, default_max_tokens=4096
)
DEMO_CONFIG: Final = ProviderConfig(
    id=DEMO_PROVIDER, name=DEMO_MODEL.name, type="openai-compat", models=(DEMO_MODEL,)
)
DEMO_CHOICE: Final = SelectedModel(model=DEMO_MODEL.id, provider=DEMO_PROVIDER)
