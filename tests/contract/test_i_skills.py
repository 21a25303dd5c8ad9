"""Contract I.3: the skills of a workspace, as its agent and its clients see them.

The parts have tests of their own in `tests/integrations/`; here a whole workspace is opened over real
files, with a model that says what a test wrote, and asked over HTTP.
"""

import orjson
import pytest

from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.server.server import client_id
from tests.contract.machine import A, Machine
from tests.integrations.skill_files import put_skill
from tests.server.scenarios import ending_of, entity

# Files are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock

B = client_id(2)


class Skilled(Machine):
    """A machine with skills on it."""

    @property
    def users(self):
        return self.home / ".config" / "crush" / "skills"

    def ours(self, name="project"):
        return self.project(name) / ".agents" / "skills"

    def system(self):
        """Return what the model was told before anything else, the last time."""
        [*_, last] = [request for request in self.model.requests if request.tools]
        return "\n\n".join(last.system)


@pytest.fixture
def machine(tmp_path):
    return Skilled(tmp_path)


def asks(events):
    """Return what somebody was asked."""
    return [event for event in events if event["type"] == "permission_request"]


def view(file):
    return [CallTool("view", {"file_path": str(file)})], [Say("done")]


# ── I7 ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I7")
async def test_clients_list_skills_and_read_them(machine):
    file = put_skill(machine.users, "jq", "JSON queries", "user-invocable: true")
    put_skill(machine.ours(), "broken").write_text("")
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        listed = (await place.request("GET", "/skills")).json()
        assert listed == [
            {
                "id": str(file),
                "name": "jq",
                "description": "JSON queries",
                "label": "user:jq",
                "source": "user",
                "user_invocable": True,
            }
        ]
        read = await place.request("POST", "/skills/read", {"skill_id": listed[0]["id"]})
        assert read.status == 200
        about = {"name": "jq", "description": "JSON queries", "source": "user", "builtin": False}
        assert read.json()["result"] == about
        unknown = await place.request("POST", "/skills/read", {"skill_id": "/etc/passwd"})
        assert (unknown.status, unknown.json()["code"]) == (404, "skill_not_found")


@pytest.mark.item("I7")
@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
async def test_a_project_that_is_not_trusted_does_not_replace_a_skill(machine, trusted):
    put_skill(machine.users, "deploy", "as the user does it")
    put_skill(machine.ours(), "deploy", "as the project does it")
    if trusted:
        machine.configure({"crush_trio": {"trusted_directories": [str(machine.project())]}})
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        await machine.ask(place, [Say("done")])
    assert ("as the project does it" in machine.system()) is trusted
    assert ("as the user does it" in machine.system()) is not trusted


# ── I8 ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I8", "I6")
async def test_a_model_is_told_where_a_skill_is_and_not_what_it_says(machine):
    file = put_skill(machine.users, "jq", "JSON queries", text="THE BODY")
    put_skill(machine.ours(), "silent", "x", "disable-model-invocation: true")
    put_skill(machine.ours(), "off", "y")
    machine.configure({"options": {"disabled_skills": ["off"]}})
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        await machine.ask(place, [Say("done")])
    assert f"- jq: JSON queries ({file})" in machine.system()
    for unsaid in ("THE BODY", "silent", "- off:"):
        assert unsaid not in machine.system()


@pytest.mark.item("I8")
async def test_without_skills_there_is_no_word_of_them(machine):
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        await machine.ask(place, [Say("done")])
    assert "# Skills" not in machine.system()


@pytest.mark.item("I8", "I6")
async def test_a_run_knows_the_skills_of_its_moment_and_clients_hear_of_them(machine):
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        await machine.ask(place, [Say("done")])
        file = put_skill(machine.ours(), "new", "fresh")
        with await place.watch(A) as events:
            await machine.ask(place, [Say("done")])
            told = await events.until(lambda event: event["type"] == "skills_event")
        assert entity(told) == {"states": [{"name": "new", "path": str(file), "state": 0}]}
        assert f"- new: fresh ({file})" in machine.system()
        assert len((await place.request("GET", "/skills")).json()) == 1


@pytest.mark.item("I8")
async def test_the_skills_of_one_workspace_are_none_of_another(machine):
    put_skill(machine.ours("one"), "first")
    put_skill(machine.ours("two"), "second")
    async with machine.serve() as server:
        one = await server.create(A, str(machine.project("one")))
        two = await server.create(B, str(machine.project("two")))
        for place, name in ((one, "first"), (two, "second")):
            [listed] = (await place.request("GET", "/skills")).json()
            assert listed["name"] == name
        put_skill(machine.ours("one"), "third")
        with await two.watch(B) as others:
            await machine.ask(one, [Say("done")])
            await two.create_session("after")
            assert (await others.next())["type"] == "session"


@pytest.mark.item("I8")
async def test_a_skill_outside_the_workspace_is_viewed_whole_and_without_asking(machine):
    lines = "".join(f"line {number}\n" for number in range(50_000))
    file = put_skill(machine.users, "jq", "JSON queries", text=lines)
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        [result], events = await machine.ask(place, *view(file))
    assert asks(events) == []
    assert len(lines) > 200 * 1024
    assert "line 49999" in result["content"]
    metadata = orjson.loads(result["metadata"])
    assert (metadata["resource_type"], metadata["resource_name"]) == ("skill", "jq")
    assert metadata["resource_description"] == "JSON queries"


@pytest.mark.item("I8")
async def test_what_lies_beside_a_skill_is_viewed_without_asking_too(machine):
    beside = put_skill(machine.users, "jq").with_name("more.md")
    beside.write_text("more of it\n")
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        [result], events = await machine.ask(place, *view(beside))
    assert asks(events) == []
    assert "more of it" in result["content"]
    assert "resource_type" not in orjson.loads(result["metadata"])


@pytest.mark.item("I8")
async def test_a_skill_does_not_open_up_what_is_private(machine):
    """A project makes the data directory a skill of its own; what is in it is asked for all the same."""
    data = machine.project() / ".crush"
    put_skill(machine.project(), ".crush").rename(data / "kept")
    text = "---\nname: mine\ndescription: d\n---\n"
    (data / "SKILL.md").write_text(text)
    (data / "keys").write_text("secret\n")
    (machine.ours()).mkdir(parents=True)
    (machine.ours() / "mine").symlink_to(data)
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()), interactive=True)
        [listed] = (await place.request("GET", "/skills")).json()
        assert listed["name"] == "mine"
        machine.answers += view(data / "keys")
        session = await place.create_session()
        with await place.watch(A) as events:
            await place.submit(session, "go", "r")
            wanted = await events.until(lambda event: event["type"] == "permission_request")
            assert entity(wanted)["params"]["file_path"] == str(data / "keys")
            await place.cancel(session)
            await events.until(ending_of("r"))


@pytest.mark.item("I7")
async def test_the_agent_can_report_its_skills(machine):
    file = put_skill(machine.users, "jq")
    bad = put_skill(machine.ours(), "bad")
    bad.write_text("")
    async with machine.serve() as server:
        place = await server.create(A, str(machine.project()))
        [result], _ = await machine.ask(place, [CallTool("crush_info", {})], [Say("done")])
    assert f"jq = {file}, ok" in result["content"]
    assert f"{bad}, error, description is missing" in result["content"]
