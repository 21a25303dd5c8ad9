"""A workspace knows the skills that there are, and hears of it when they change."""

from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from attrs import define, field

from crush_trio.clock import TrioClock
from crush_trio.config.live import open_live_config
from crush_trio.config.template import refuse_command
from crush_trio.errors import SkillNotFound
from crush_trio.integrations.base import Surroundings
from crush_trio.integrations.skills import open_skills, skill_places
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.integrations import SkillLoad
from crush_trio.wire.requests import Scope
from tests.config.homes import Home
from tests.integrations.skill_files import put_skill

# Files are read in threads, and the virtual clock does not see those.
pytestmark = [pytest.mark.real_clock, pytest.mark.item("I7")]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@define(eq=False)
class Heard:
    """What the clients of a workspace were told."""

    facts: list = field(factory=list)
    _more: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def publish(self, fact):
        self.facts.append(fact)
        self._more.unpark_all()

    async def times(self, count):
        with trio.fail_after(30):
            while len(self.facts) < count:
                await self._more.park()


@asynccontextmanager
async def opened(home, run_command=refuse_command):
    heard = Heard()
    async with open_live_config(home.places(), run_command=run_command) as live:
        surroundings = Surroundings(
            workspace_id=WorkspaceId("w"),
            directory=home.project,
            live=live,
            publish=heard.publish,
            clock=TrioClock(),
        )
        async with open_skills(surroundings) as skills:
            yield skills, live, heard


def names(skills):
    return [info.name for info in skills.listed()]


def project_skills(home):
    return home.project / ".agents" / "skills"


async def test_skills_are_there_when_the_workspace_is(home):
    put_skill(home.home / ".claude" / "skills", "users")
    put_skill(project_skills(home), "ours")
    put_skill(project_skills(home), "broken").write_text("")
    async with opened(home) as (skills, _, _):
        assert [info.label for info in skills.listed()] == ["project:ours", "user:users"]
        assert [each.info for each in skills.for_agents()] == list(skills.listed())
        states = {state.path.split("/")[-2]: state.state for state in skills.states()}
        assert states == {
            "broken": SkillLoad.ERROR,
            "ours": SkillLoad.OK,
            "users": SkillLoad.OK,
        }


async def test_the_places_go_from_the_least_to_the_most_particular(home):
    sub = home.project / "sub"
    sub.mkdir()
    home.write(home.user_file, {"options": {"skills_paths": ["more", str(home.root / "shared")]}})
    home.trust(sub)
    config = await home.load(sub)
    places = await skill_places(config)
    configured = [(sub / "more", "project", False), (home.root / "shared", "user", False)]
    project = [
        (parent / name / "skills", "project", parent != sub)
        for parent in (home.project, sub)
        for name in (".agents", ".crush", ".claude", ".cursor")
    ]
    found = [(place.path, place.source, place.confined) for place in places]
    assert [source for _, source, _ in found[:4]] == ["user"] * 4
    assert found[4:] == [*configured, *project]


async def test_a_project_does_not_say_to_look_outside_of_itself(home):
    put_skill(home.root / "secret", "outside")
    put_skill(home.project / "docs", "inside")
    paths = [str(home.root / "secret"), "docs"]
    home.write(home.project_file, {"options": {"skills_paths": paths}})
    async with opened(home) as (skills, _, _):
        assert names(skills) == ["inside"]
        assert any("leads out of a project" in state.error for state in skills.states())
    home.trust()
    async with opened(home) as (skills, _, _):
        assert names(skills) == ["inside", "outside"]


async def test_a_path_that_cannot_be_found_out_leaves_the_other_places(home):
    put_skill(project_skills(home), "ours")
    home.write(home.user_file, {"options": {"skills_paths": ["${NOT_SET:?is missing}"]}})
    async with opened(home) as (skills, _, _):
        assert names(skills) == ["ours"]


async def test_looking_again_tells_the_clients_what_there_is_now_if_it_is_different(home):
    async with opened(home) as (skills, _, heard):
        assert heard.facts == []
        put_skill(project_skills(home), "new")
        await skills.refresh()
        await skills.refresh()
        [fact] = heard.facts
        assert (fact.payload_type, fact.change) == ("skills_event", "updated")
        assert [state.name for state in fact.entity.states] == ["new"]
        put_skill(project_skills(home), "new", "described in another way")
        await skills.refresh()
        assert len(heard.facts) == 2
        assert skills.listed()[0].description == "described in another way"


async def test_a_change_of_the_configuration_is_followed(home):
    put_skill(project_skills(home), "jq")
    async with opened(home) as (skills, live, heard):
        await heard.times(1)
        assert names(skills) == ["jq"]
        await live.set(Scope.GLOBAL, "options.disabled_skills", ["jq"])
        await heard.times(2)
        assert names(skills) == []
        await live.remove(Scope.GLOBAL, "options.disabled_skills")
        await heard.times(3)
        assert names(skills) == ["jq"]


async def test_a_search_for_a_configuration_that_no_longer_holds_changes_nothing(home):
    """It waits for a command that says where to look, until a later one has found out."""
    put_skill(home.root / "shared", "jq")
    home.write(home.user_file, {"options": {"skills_paths": ["$(where)"]}})
    waiting, go_on, calls = trio.Event(), trio.Event(), []

    async def where(_script, _environment, _directory):
        calls.append(None)
        if len(calls) == 2:
            waiting.set()
            await go_on.wait()
        await trio.lowlevel.checkpoint()
        return str(home.root / "shared")

    async with opened(home, where) as (skills, live, heard), trio.open_nursery() as nursery:
        nursery.start_soon(skills.refresh)
        with trio.fail_after(30):
            await waiting.wait()
        assert names(skills) == ["jq"]
        await live.set(Scope.GLOBAL, "options.disabled_skills", ["jq"])
        await heard.times(2)
        go_on.set()
    assert names(skills) == []
    assert len(heard.facts) == 2


async def test_a_skill_is_read_as_it_is_now(home):
    file = put_skill(project_skills(home), "jq", "JSON queries")
    async with opened(home) as (skills, _, _):
        [info] = skills.listed()
        file.write_bytes(file.read_bytes() + b"More.\n")
        content = await skills.read(info.id)
        assert content.content == file.read_bytes()
        about = content.result
        assert (about.name, about.description) == ("jq", "JSON queries")
        assert (about.source, about.builtin) == ("project", False)


async def test_only_a_skill_that_was_found_is_read(home):
    file = put_skill(project_skills(home), "jq")
    secret = home.write(home.root / "secret", "secret")
    async with opened(home) as (skills, _, _):
        [info] = skills.listed()
        with pytest.raises(SkillNotFound):
            await skills.read(str(secret))
        file.unlink()
        with pytest.raises(SkillNotFound):
            await skills.read(info.id)
        file.symlink_to(secret)
        with pytest.raises(SkillNotFound):
            await skills.read(info.id)


FLAWED = {
    "no-header": "# Notes\nUse tabs.\n",
    "colon": "---\nname: colon\ndescription: Use it: always\n---\nBody\n",
    "other": "---\nname: My Skill!\ndescription: d\n---\nBody\n",
}


async def test_a_skill_with_a_usual_flaw_is_used_and_clients_are_told_of_the_flaw(home):
    for name, text in FLAWED.items():
        put_skill(home.user_file.parent / "skills", name).write_text(text)
    async with opened(home) as (skills, *_):
        assert len(skills.listed()) == len(FLAWED)
        shown = orjson.loads(encode(skills.states()))
    assert [bool(each["warning"]) for each in shown] == [True] * len(FLAWED)
    assert not any(each.get("error") for each in shown)
