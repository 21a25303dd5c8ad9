"""The skills of a workspace that are files on a disk (I7, I8).

They are looked for when the workspace opens, whenever its configuration has changed, and before every
run. A search is one call in a thread, and what it found takes the place of what was found before in
one step: whoever asks meanwhile gets the one or the other, whole. Searches go one at a time, and one
for a configuration that no longer holds does not have the last word.
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
from crush_trio.wire.events import EventType, PayloadType, SkillsEvent
from crush_trio.wire.ids import SkillId
from crush_trio.wire.integrations import (
    SkillContent,
    SkillInfo,
    SkillSource,
    SkillState,
    SkillSummary,
)

log = logging.getLogger(__name__)


@define(eq=False)
class FileSkills:
    """Satisfies `Skills`. Made by `open_skills`."""

    _surroundings: Surroundings
    _found: FoundSkills = field(factory=FoundSkills, init=False)
    _revision: int = field(default=0, init=False)
    """The configuration for which it was found."""
    _door: trio.CapacityLimiter = field(
        factory=partial(trio.CapacityLimiter, 1), init=False, repr=False
    )

    def states(self) -> tuple[SkillState, ...]:
        """Return every skill file, and what is wrong with it, if anything is."""
        return self._found.states

    def listed(self) -> tuple[SkillInfo, ...]:
        """Return the skills that can be used, by name."""
        return tuple(skill.info for skill in self._found.skills)

    def for_agents(self) -> tuple[AgentSkill, ...]:
        """Return the same as an agent uses them."""
        return self._found.skills

    async def read(self, skill_id: SkillId) -> SkillContent:
        """Return the file of a skill as it is now."""
        await trio.lowlevel.checkpoint()
        for skill in self._found.skills:
            if skill.info.id == skill_id:
                return await trio.to_thread.run_sync(_content, skill)
        raise SkillNotFound(skill_id)

    async def refresh(self) -> None:
        """Look for skills again, and tell the clients if anything is different."""
        config = self._surroundings.live.current
        places = await skill_places(config)
        search = partial(find_skills, places, config.project, config.config.options.disabled_skills)
        found = await trio.to_thread.run_sync(search, limiter=self._door)
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
        """Look again whenever there is a configuration after *revision*, until there will be none."""
        live = self._surroundings.live
        while True:
            try:
                revision = (await live.newer_than(revision)).revision
            except WorkspaceClosing:
                return  # noqa: ASYNC910  # waiting for a newer one is a checkpoint, also when it raises
            await self.refresh()


def _content(skill: AgentSkill) -> SkillContent:
    """Return the file of a skill, if it is still the one that was found. Touches the disk."""
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


async def skill_places(config: LoadedConfig) -> tuple[SkillPlace, ...]:
    """Return where a workspace's skills are looked for, the strongest last."""
    project = config.project
    own = (
        SkillPlace(
            path=parent / name / "skills",
            source=SkillSource.PROJECT,
            confined=not config.trusts(parent),
        )
        for parent in dict.fromkeys((project.root, project.directory))
        for name in PROJECT_DIRECTORIES
    )
    return (*user_places(config.places), *await _configured(config), *own)


async def _configured(config: LoadedConfig) -> tuple[SkillPlace, ...]:
    """Return the places that the configuration names; if it fails to, there are none."""
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
    """Find the skills of a workspace, and keep them up to date for the length of the block."""
    skills, revision = FileSkills(surroundings), surroundings.live.current.revision
    await skills.refresh()
    async with open_hidden_nursery() as nursery:
        # A change that comes before the task has begun is not missed: it is after *revision*.
        nursery.start_soon(skills.follow, revision)  # noqa: ASYNC113
        yield skills
        nursery.cancel_scope.cancel()
