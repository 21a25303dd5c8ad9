"""A machine with one user and one project, all below a temporary directory."""

import json
from pathlib import Path

from attrs import define, field

from crush_trio.config import Places, load_config
from crush_trio.wire.config import CatalogModel, CatalogProvider

SECRET = "sk-never-to-be-seen"


@define
class Home:
    root: Path
    environment: dict[str, str] = field(factory=dict)

    def __attrs_post_init__(self):
        self.root = self.root.resolve()
        self.project.mkdir()
        (self.project / ".git").mkdir()

    @property
    def home(self):
        return self.root / "home"

    @property
    def project(self):
        return self.root / "project"

    @property
    def system_file(self):
        return self.root / "etc" / "crush.json"

    @property
    def user_file(self):
        return self.home / ".config" / "crush" / "crush.json"

    @property
    def data_file(self):
        return self.home / ".local" / "share" / "crush" / "crush.json"

    @property
    def project_file(self):
        return self.project / "crush.json"

    @property
    def workspace_file(self):
        return self.project / ".crush" / "crush.json"

    @property
    def own_file(self):
        """The user's file for the project, outside of it."""
        return self.places().workspace_file

    def write(self, path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def trust(self, directory=None):
        """Let the user trust what is below a directory, the project unless told."""
        where = str(directory or self.project)
        self.write(self.system_file, {"crush_trio": {"trusted_directories": [where]}})

    def places(self, directory=None, **kwargs):
        return Places(
            directory=directory or self.project,
            home=self.home,
            environment=self.environment,
            system_file=self.system_file,
            **kwargs,
        )

    async def load(self, directory=None, *, data_dir="", **kwargs):
        return await load_config(self.places(directory, data_dir=data_dir), **kwargs)


def custom(**more):
    """Return a provider that needs nothing but itself."""
    return {"base_url": "http://localhost:9", "models": [{"id": "m1"}, {"id": "m2"}], **more}


MODEL_A = CatalogModel(id="a-large", name="A Large", default_max_tokens=4096)
MODEL_B = CatalogModel(
    id="a-small",
    name="A Small",
    default_max_tokens=512,
    can_reason=True,
    reasoning_levels=("low", "high"),
    default_reasoning_effort="high",
)
CATALOGUE = (
    CatalogProvider(
        id="anthropic",
        name="Anthropic",
        type="anthropic",
        api_key="$ANTHROPIC_API_KEY",
        api_endpoint="https://api.anthropic.com/v1",
        default_large_model_id="a-large",
        default_small_model_id="a-small",
        models=(MODEL_B, MODEL_A),
        default_headers={"x-version": "1"},
    ),
    CatalogProvider(
        id="openai",
        name="OpenAI",
        type="openai",
        default_large_model_id="o-large",
        models=(CatalogModel(id="o-large", name="O"),),
    ),
)


def texts(loaded, kind=None):
    """Return the warnings as lines, all or those of one kind."""
    return [str(warning) for warning in loaded.warnings if kind in {None, warning.kind}]
