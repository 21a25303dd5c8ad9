"""What a program brings along for a workspace is known to its agent, too."""

from contextlib import asynccontextmanager

import pytest
from attrs import frozen
from trio.lowlevel import checkpoint

from crush_trio.integrations.base import (
    AgentSkill,
    Integrations,
    NoLanguageServers,
    NoMcpServers,
    NoSkills,
)
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.wire.integrations import (
    LspClientInfo,
    LspState,
    McpClientInfo,
    McpState,
    SkillInfo,
    SkillState,
)
from tests.backend.test_open import open_project, outcome_of

# Configurations are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock


@frozen
class Lsp(NoLanguageServers):
    def states(self):
        return {"gopls": LspClientInfo(name="gopls", state=LspState.READY)}


@frozen
class Mcp(NoMcpServers):
    def states(self):
        return {"gh": McpClientInfo(name="gh", state=McpState.NEEDS_AUTH, tool_count=2)}


@frozen
class Recipes(NoSkills):
    """Skills that are not where skills usually are."""

    directory: object

    def states(self):
        return (SkillState(name="soup", path=str(self.directory / "soup.md")),)

    def for_agents(self):
        return (self._skill("soup", advertised=True), self._skill("secret", advertised=False))

    def _skill(self, name, *, advertised):
        info = SkillInfo(
            id=str(self.directory / f"{name}.md"),
            name=name,
            description=f"how to make {name}",
            label=f"system:{name}",
            source="system",
            user_invocable=False,
        )
        return AgentSkill(info=info, file=self.directory / f"{name}.md", advertised=advertised)


def bringing(recipes):
    @asynccontextmanager
    async def opened(_surroundings):
        await checkpoint()
        yield Integrations(lsp=Lsp(), mcp=Mcp(), skills=Recipes(recipes))

    return opened


@pytest.fixture
def recipes(tmp_path):
    directory = tmp_path.resolve() / "recipes"
    directory.mkdir()
    (directory / "soup.md").write_text("boil it\n")
    return directory


async def told(directory, recipes, call):
    """Return the system prompt that the model was given, and what its one call was answered with."""
    script = [[call], [Say("done")]]
    async with open_project(directory, script, open_integrations=bringing(recipes)) as (
        opened,
        model,
    ):
        assert (await outcome_of(opened)).text == "done"
    [asked, answered] = [request for request in model.requests if request.tools]
    return "\n".join(asked.system), answered.messages[-1].parts[0].content


async def test_the_agent_can_report_what_there_is(tmp_path, recipes):
    _, report = await told(tmp_path / "p", recipes, CallTool("crush_info", {}))
    assert "gopls is ready" in report
    assert "gh is needs auth, 2 tools" in report
    assert f"soup = {recipes / 'soup.md'}, ok" in report


async def test_the_agent_is_told_of_a_skill_and_reads_it_where_it_is(tmp_path, recipes):
    call = CallTool("view", {"file_path": str(recipes / "soup.md")})
    system, shown = await told(tmp_path / "p", recipes, call)
    assert f"- soup: how to make soup ({recipes / 'soup.md'})" in system
    assert "- secret:" not in system
    assert "boil it" in shown
