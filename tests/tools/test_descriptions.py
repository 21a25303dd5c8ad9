"""What the tools of the package say of themselves."""

from typing import Annotated

import pytest
from attrs import define, frozen

from crush_trio.agent.asks.questions import QuestionTool
from crush_trio.agent.turn.subagent import AgentTool
from crush_trio.tools.base import About, BuiltIn, schema_of
from crush_trio.tools.files.edit import EditTool, MultiEditTool, WriteTool
from crush_trio.tools.files.view import ViewTool
from crush_trio.tools.info import CrushInfoTool, CrushLogsTool
from crush_trio.tools.search.grep import GrepTool
from crush_trio.tools.search.listing import GlobTool, LsTool
from crush_trio.tools.shell.bash import BashTool, JobKillTool, JobOutputTool
from crush_trio.tools.todos import TodosTool
from crush_trio.tools.web.download import DownloadTool
from crush_trio.tools.web.fetch import FetchTool

PARALLEL = {
    AgentTool,
    CrushInfoTool,
    CrushLogsTool,
    DownloadTool,
    FetchTool,
    GlobTool,
    GrepTool,
    LsTool,
    ViewTool,
}
ALONE = {
    BashTool,
    EditTool,
    JobKillTool,
    JobOutputTool,
    MultiEditTool,
    QuestionTool,
    TodosTool,
    WriteTool,
}


def made(cls):
    """Return a tool that nobody can run: what it says of itself depends on its class alone."""
    return object.__new__(cls)


@pytest.mark.parametrize("cls", sorted(PARALLEL | ALONE, key=lambda cls: cls.name))
def test_every_tool_has_words_and_a_schema_that_are_made_once(cls):
    one, other = made(cls), made(cls)
    assert len(one.description) > 40
    assert one.description is other.description
    assert one.parameters == schema_of(cls.arguments)
    assert one.parameters is other.parameters
    assert one.parallel == (cls in PARALLEL)


def test_two_tools_do_not_share_what_they_take():
    @frozen(kw_only=True)
    class Arguments:
        one: Annotated[str, About("a word")]

    @define(eq=False)
    class Other(BuiltIn):
        name = "other"
        arguments = Arguments

    assert list(Other().parameters["properties"]) == ["one"]
    assert list(made(ViewTool).parameters["properties"]) == ["file_path", "offset", "limit"]
