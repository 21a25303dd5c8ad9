"""`FileSkills`: the skills of a workspace, found on disk (I7, I8).

They are searched when the workspace opens, when its configuration changes, and before every run. A
search is one call in a thread, and its result replaces the previous one atomically. Searches run one at
a time; the result of a search for an outdated configuration is dropped.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import define, field

from crush_trio.config.context_files import ContextPath
from crush_trio.config.errors import ExpansionFailed
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import real_path
from crush_trio.errors import SkillNotFound, WorkspaceClosing
from crush_trio.events.facts import Fact
from crush_trio.integrations.base import AgentSkill, Surroundings
from crush_trio.integrations.skill_files import (
    PROJECT_DIRECTORIES,
    FoundSkills,
    SkillPlace,
    UnusableSkill,
    find_skills,
    read_skill,
    user_places,
)
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import SkillId
from crush_trio.wire.integrations import (
    SkillContent,
    SkillInfo,
    SkillsEvent,
    SkillSource,
    SkillState,
    SkillSummary,
)

log = logging.getLogger(__name__)

UsualPlaces = tuple[tuple[SkillPlace, ...], tuple[SkillPlace, ...]]
"""The user's directories of skills, and those of a project."""


@define(eq=False)
class FileSkills:
    """Satisfies `Skills`. Made by `open_skills`."""

    _surroundings: Surroundings
    _found: FoundSkills = field(factory=FoundSkills, init=False)
    _revision: int = field(default=0, init=False)
    """The revision of the configuration that `_found` belongs to."""
    _usual: tuple[LoadedConfig, UsualPlaces] | None = field(default=None, init=False, repr=False)
    """The places of the present configuration that no template names."""
    _searches: trio.CapacityLimiter = field(
        factory=partial(trio.CapacityLimiter, 1), init=False, repr=False
    )

    def states(self) -> tuple[SkillState, ...]:
        """Return every skill file, with its error if it has one."""
        return self._found.states

    def listed(self) -> tuple[SkillInfo, ...]:
        """Return the usable skills by name, for clients."""
        return tuple(skill.info for skill in self._found.skills)

    def for_agents(self) -> tuple[AgentSkill, ...]:
        """Return the usable skills by name, for agents."""
        return self._found.skills

    async def read(self, skill_id: SkillId) -> SkillContent:
        """Return the current content of a skill file."""
        await trio.lowlevel.checkpoint()
        for skill in self._found.skills:
            if skill.info.id == skill_id:
                return await trio.to_thread.run_sync(_content, skill)
        raise SkillNotFound(skill_id)

    async def refresh(self) -> None:
        """Search for skills again, and publish an event if anything changed."""
        config = self._surroundings.live.current
        if self._usual is None or self._usual[0] is not config:
            self._usual = config, usual_places(config)
        places = await skill_places(config, self._usual[1])
        search = partial(find_skills, places, config.project, config.config.options.disabled_skills)
        found = await trio.to_thread.run_sync(search, limiter=self._searches)
        if config.revision >= self._revision:
            self._revision = config.revision
            self._replace(found)

    def _replace(self, found: FoundSkills) -> None:
        if found == self._found:
            return
        self._found = found
        self._surroundings.publish(
            Fact(
                payload_type=PayloadType.SKILLS_EVENT,
                change=EventType.UPDATED,
                entity=SkillsEvent(states=found.states),
            )
        )

    async def follow(self, revision: int) -> None:
        """Search again for every configuration after *revision*, until the workspace closes."""
        live = self._surroundings.live
        while True:
            try:
                revision = (await live.newer_than(revision)).revision
            except WorkspaceClosing:
                return  # noqa: ASYNC910  # waiting for a newer one is a checkpoint, also when it raises
            await self.refresh()


def _content(skill: AgentSkill) -> SkillContent:
    """Return the content of a skill file, if its path still leads to the same file. Reads the disk."""
    info = skill.info
    try:
        if real_path(skill.file) != skill.file:
            raise UnusableSkill("the file is another one now")
        content = read_skill(skill.file)
    except UnusableSkill:
        raise SkillNotFound(info.id) from None
    about = SkillSummary(
        name=info.name,
        description=info.description,
        source=info.source.value,
        builtin=info.source is SkillSource.SYSTEM,
    )
    return SkillContent(content=content, result=about)


async def skill_places(
    config: LoadedConfig, usual: UsualPlaces | None = None
) -> tuple[SkillPlace, ...]:
    """Return the directories to search for a workspace; later ones override earlier ones."""
    users, own = usual_places(config) if usual is None else usual
    return (*users, *await _configured(config), *own)


def usual_places(config: LoadedConfig) -> UsualPlaces:
    """Return the directories to search whose names are fixed."""
    project = config.project
    own = tuple(
        SkillPlace(
            path=parent / name / "skills",
            source=SkillSource.PROJECT,
            confined=not config.trusts(parent),
        )
        for parent in dict.fromkeys((project.root, project.directory))
        for name in PROJECT_DIRECTORIES
    )
    return user_places(config.places), own


async def _configured(config: LoadedConfig) -> tuple[SkillPlace, ...]:
    """Return the directories that the configuration names; none if they cannot be expanded."""
    try:
        paths = await config.skills_paths()
    except ExpansionFailed as error:
        log.warning("skills.paths_unknown", extra={"error": str(error)})
        return ()  # noqa: ASYNC910  # finding them out is a checkpoint, also when it fails
    return tuple(
        SkillPlace(path=each.path, source=_source(config, each), confined=each.confined)
        for each in paths
    )


def _source(config: LoadedConfig, place: ContextPath) -> SkillSource:
    ours = place.confined or place.path.is_relative_to(config.project.root)
    return SkillSource.PROJECT if ours else SkillSource.USER


@asynccontextmanager
async def open_skills(surroundings: Surroundings) -> AsyncIterator[FileSkills]:
    """Find the skills of a workspace, and keep them up to date while the block runs."""
    skills, revision = FileSkills(surroundings), surroundings.live.current.revision
    await skills.refresh()
    async with open_hidden_nursery() as nursery:
        # A change before the task has begun is not missed, because it is newer than *revision*.
        nursery.start_soon(skills.follow, revision)  # noqa: ASYNC113
        yield skills
        nursery.cancel_scope.cancel()
