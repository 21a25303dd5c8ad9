"""A workspace and its agent as clients see them.

Apart from the other views because these carry the configuration and the catalogue, which most
programs that watch a stream never load.
"""

from attrs import field, frozen

from crush_trio.wire.catalog import CatalogModel, SelectedModel
from crush_trio.wire.config import Config
from crush_trio.wire.fields import OmitEmpty
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.integrations import SkillState
from crush_trio.wire.views import ErrorBody


@frozen(kw_only=True)
class Workspace:
    """A hosted directory; `version` is the server's. The environment stays out of `repr`."""

    id: WorkspaceId
    path: str
    yolo: OmitEmpty[bool] = False
    debug: OmitEmpty[bool] = False
    data_dir: OmitEmpty[str] = ""
    version: OmitEmpty[str] = ""
    config: OmitEmpty[Config | None] = None
    env: OmitEmpty[tuple[str, ...]] = field(default=(), repr=False)
    channels: OmitEmpty[tuple[str, ...]] = ()
    skills: OmitEmpty[tuple[SkillState, ...]] = ()
    degraded: OmitEmpty[str] = ""
    """What is wrong with its store, in a sentence."""
    warnings: OmitEmpty[tuple[ErrorBody, ...]] = ()
    """What a user should know about it although it works."""


@frozen(kw_only=True)
class AgentInfo:
    """Whether the agent can be asked, and what would answer. All zero before it is initialised."""

    is_busy: bool = False
    is_ready: bool = False
    model: CatalogModel = field(factory=CatalogModel)
    model_cfg: SelectedModel = field(factory=SelectedModel)
