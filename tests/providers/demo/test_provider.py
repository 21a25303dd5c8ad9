"""The offline model: what it says, which wishes it understands, and that it only uses what is there."""

import orjson
import pytest
import trio

from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    PromptMessage,
    Provider,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    ToolSpec,
    Usage,
)
from crush_trio.providers.demo.grammar import Wish, read_wishes, unquoted
from crush_trio.providers.demo.provider import DemoProvider, reply
from crush_trio.wire.config import CatalogModel, SelectedModel
from crush_trio.wire.messages import (
    BinaryPart,
    FinishReason,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)


def spec(name, required=(), **properties):
    shapes = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": shapes, "required": list(required)}
    return ToolSpec(name=name, description=name, parameters=parameters)


BASH = spec("bash", ["command", "description"], command="string", description="string")
VIEW = spec("view", ["file_path"], limit="integer", file_path="string")
LS = spec("ls", path="string")
FETCH = ToolSpec(
    name="fetch",
    description="fetch",
    parameters={
        "properties": {"url": {"type": "string"}, "format": {"enum": ["text", "html"]}},
        "required": ["url", "format"],
    },
)
TOOLS = (BASH, VIEW, LS, FETCH, *map(spec, ("grep", "glob", "write", "edit", "todos", "question")))
OFFERED = {tool.name: tool for tool in TOOLS}


def user(text, *files):
    return PromptMessage(role=Role.USER, parts=(TextPart(text=text), *files))


def answer(*parts):
    return PromptMessage(role=Role.ASSISTANT, parts=parts)


def called(name, call="c1"):
    return answer(ToolCallPart(id=call, name=name, input="{}", finished=True))


def result(content, name="view", call="c1", is_error=False):
    part = ToolResultPart(tool_call_id=call, name=name, content=content, is_error=is_error)
    return PromptMessage(role=Role.TOOL, parts=(part,))


def request(*messages, tools=TOOLS, **more):
    return ModelRequest(
        model=CatalogModel(id="demo"),
        chosen=SelectedModel(model="demo", provider="demo"),
        messages=tuple(user(m) if isinstance(m, str) else m for m in messages),
        tools=tools,
        **more,
    )


def said(*messages, **more):
    parts = list(reply(request(*messages, **more)))
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


def calls_of(*messages, **more):
    parts = list(reply(request(*messages, **more)))
    return [(p.name, orjson.loads(p.input)) for p in parts if isinstance(p, ToolCallEnd)]


# ── The stream ─────────────────────────────────────────────────────────────────────────────────


async def test_it_streams_at_its_pace_and_uses_nothing():
    provider: Provider = DemoProvider(pace=0.5)
    times, parts = [], []
    async with provider.stream(request("long 4")) as stream:
        async for part in stream:
            times.append(trio.current_time())
            parts.append(part)
    assert times == [0, 0.5, 1, 1.5, 2]
    assert parts[-1] == Finished(reason=FinishReason.END_TURN, usage=Usage())
    assert len(parts) == 5


async def test_it_can_be_cancelled_at_any_word():
    heard = []
    with trio.move_on_after(3.25) as scope:
        async with DemoProvider(pace=1).stream(request("long")) as stream:
            async for part in stream:
                heard.append(part)  # noqa: PERF401 - what was heard before the cancel counts
    assert scope.cancelled_caught
    assert len(heard) == 4


def test_it_says_the_same_every_time():
    for prompt in ("hello", "view a", "think", "long"):
        assert list(reply(request(prompt))) == list(reply(request(prompt)))


# ── Talk ───────────────────────────────────────────────────────────────────────────────────────


def test_it_introduces_itself_says_how_to_go_on_and_echoes_what_was_asked():
    text = said("What is this?")
    for words in (
        "offline demo of crush_trio",
        "No model is behind me",
        "stored before it was accepted",
        "cancel me",
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "`crush.json`",
        "You asked: “What is this?”",
    ):
        assert words in text


def test_it_suggests_only_what_can_be_done_here():
    assert "`list files`" in said("hello")
    assert "`list files`" not in said("hello", tools=())


def test_it_echoes_every_prompt_that_was_folded_but_not_those_of_earlier_turns_or_reminders():
    history = ["old", answer(TextPart(text="hi")), "<reminder>todo</reminder>", "one", "two"]
    text = said(*history)
    assert text.endswith("You asked: “one” And then: “two”")


def test_an_empty_conversation_is_no_problem():
    assert "You asked" not in said()


def test_it_thinks_when_asked_to():
    parts = list(reply(request("think about lunch")))
    thoughts = [part for part in parts if isinstance(part, ReasoningDelta)]
    assert "lunch" in "".join(part.text for part in thoughts)
    assert parts[len(thoughts)] == ReasoningEnd()
    assert isinstance(parts[len(thoughts) + 1], TextDelta)
    assert said("think")


def test_it_speaks_as_long_as_asked_within_the_limit():
    assert len(said("long 1000").split()) == 1000
    assert len(said("long").split()) == 400
    parts = list(reply(request("long 1000", max_tokens=100)))
    assert len(parts) == 101
    assert parts[-1].reason is FinishReason.MAX_TOKENS


def test_a_title_is_the_first_words_of_the_prompt():
    def title(prompt):
        return said(prompt, tools=(), system=("Write a title.",), max_tokens=40)

    assert title("fix the parser") == "fix the parser"
    assert title("run `ls`") == "run `ls`"
    long = title("why does the parser lose the last line of a file that has no newline")
    assert long == "why does the parser lose the last line of a file"
    assert title("x" * 99) == "Offline demo"


def test_a_summary_counts_what_happened():
    text = said("hello", called("view"), result("a"), "bye", tools=(), system=("a summary",))
    assert "* hello" in text
    assert "1 times: view" in text


# ── Tools ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("prompt", "tool", "arguments"),
    [
        ('tool view {"file_path": "a", "limit": 3}', "view", {"file_path": "a", "limit": 3}),
        ("tool ls", "ls", {}),
        ("use view on README.md", "view", {"file_path": "README.md"}),
        ("please use the view tool with `a b.md`.", "view", {"file_path": "a b.md"}),
        ("use ls", "ls", {}),
        ("run `ls -l; date`", "bash", {"command": "ls -l; date"}),
        ("$ git log -1", "bash", {"command": "git log -1"}),
        ("Could you please view src/main.py?", "view", {"file_path": "src/main.py"}),
        ("read the file notes.txt", "view", {"file_path": "notes.txt"}),
        ("list files in src", "ls", {"path": "src"}),
        ("ls ..", "ls", {"path": ".."}),
        ("list", "ls", {}),
        ("search for def main in src", "grep", {"pattern": "def main", "path": "src"}),
        ('grep "a in b"', "grep", {"pattern": "a in b"}),
        ("find **/*.py", "glob", {"pattern": "**/*.py"}),
        ("write 'hello, you' to a.txt", "write", {"content": "hello, you", "file_path": "a.txt"}),
        (
            "replace `a` with `b` in c.txt",
            "edit",
            {"old_string": "a", "new_string": "b", "file_path": "c.txt"},
        ),
        (
            "edit c.txt: a b => c",
            "edit",
            {"file_path": "c.txt", "old_string": "a b", "new_string": "c"},
        ),
        ("fetch https://example.test/a", "fetch", {"url": "https://example.test/a"}),
        (
            "remember tea, biscuits",
            "todos",
            {
                "todos": [
                    {"content": item, "status": "pending", "active_form": item}
                    for item in ("tea", "biscuits")
                ]
            },
        ),
    ],
)
def test_it_understands_a_wish(prompt, tool, arguments):
    [(name, given)] = calls_of(prompt)
    assert name == tool
    assert {key: given[key] for key in arguments} == arguments
    assert set(given) == set(arguments) | set(OFFERED[tool].parameters["required"])


def test_it_asks_what_it_is_told_to_ask():
    [(_, given)] = calls_of("ask me How are you?")
    [question] = given["questions"]
    assert question["question"] == "How are you?"
    assert question["description"]


def test_what_a_tool_requires_and_nobody_said_is_filled_in():
    assert calls_of("run date")[0][1]["description"]
    assert calls_of("fetch https://a.test")[0][1]["format"] == "text"
    every = spec("every", "abcd", a="string", b="integer", c="array", d="boolean")
    [(_, given)] = calls_of("use every on it", tools=(every,))
    assert given == {"a": "it", "b": 0, "c": [], "d": False}


def test_arguments_are_passed_on_as_they_were_written():
    parts = list(reply(request('tool view {"file_path": ')))
    [begin, *deltas, end, finished] = parts
    assert begin == ToolCallBegin(end.id, "view")
    assert all(isinstance(part, ToolCallDelta) for part in deltas)
    assert "".join(part.text for part in deltas) == end.input == '{"file_path":'
    assert finished == Finished(reason=FinishReason.TOOL_USE)


def test_several_tools_may_be_called_at_once():
    parts = list(reply(request('tool ls {}\ntool view {"file_path": "a"}')))
    ends = [part for part in parts if isinstance(part, ToolCallEnd)]
    assert [end.name for end in ends] == ["ls", "view"]
    assert len({end.id for end in ends}) == 2


def test_the_same_wish_later_in_a_session_is_another_call():
    first = next(reply(request("ls")))
    history = [
        "ls",
        called("ls", first.id),
        result("a", "ls", first.id),
        answer(TextPart(text="a")),
    ]
    assert next(reply(request(*history, "ls"))).id != first.id
    assert next(reply(request("ls", affinity="other"))).id != first.id


@pytest.mark.parametrize(
    "prompt", ["run `ls`", "tool bash {}", "use bash on x", "tool ls\ntool bash"]
)
def test_a_tool_that_is_not_offered_is_not_called(prompt):
    assert calls_of(prompt, tools=(LS, VIEW)) == []
    text = said(prompt, tools=(LS, VIEW))
    assert "no `bash`" in text
    assert "`ls`, `view`" in text


@pytest.mark.parametrize(
    "prompt", ["hello", "what do you use?", "I like to list things", "toolbox"]
)
def test_plain_talk_is_not_a_wish(prompt):
    assert read_wishes(prompt, OFFERED) == ()


def test_a_wish_beside_an_attached_file_is_understood():
    assert calls_of('view a\n\n<file path="b">\ntext\n</file>')[0][0] == "view"


def test_a_result_is_told_and_ends_the_turn():
    history = ["view a", called("view"), result("one\ntwo")]
    parts = list(reply(request(*history)))
    text = said(*history)
    assert "`view` has answered, 2 lines" in text
    assert "    one\n    two" in text
    assert "…" not in text
    assert parts[-1].reason is FinishReason.END_TURN
    assert calls_of(*history) == []


def test_a_long_result_is_shortened_and_an_error_is_called_one():
    assert "12 lines" in said("x", called("view"), result("\n".join("ab" * 6)))
    assert "…" in said("x", called("view"), result("\n".join("ab" * 6)))
    assert "reports an error, 1 line" in said("x", called("view"), result("no", is_error=True))


def test_pictures_that_follow_their_result_are_not_a_prompt():
    picture = BinaryPart(path="view", mime_type="image/png", data=b"png")
    text = said("x", called("view"), result("a"), user("What the tools returned:", picture))
    assert "You asked" not in text


def test_a_prompt_that_was_folded_behind_a_result_is_answered_too():
    history = ["view a", called("view"), result("one"), "ls"]
    assert "`view` has answered" in said(*history)
    assert calls_of(*history) == [("ls", {})]


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("`a`", "a"),
        ('"a b" ', "a b"),
        ("a.", "a"),
        (".", "."),
        ("it's", "it's"),
        ("'", "'"),
        ("", ""),
    ],
)
def test_quotes_hold_what_is_meant(text, inner):
    assert unquoted(text) == inner


def test_a_wish_does_not_need_its_tool_to_be_understood():
    assert read_wishes("ls", {}) == (Wish("ls", "{}"),)
