"""Tool calls in chunks of chat completions, as servers really send them."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.providers.base import ToolCallBegin, ToolCallDelta, ToolCallEnd
from crush_trio.wire.messages import FinishReason
from tests.providers.chunks import JSON, call, end, read


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param(
            [call(id="a", name="ls"), call(arguments='{"p'), call(arguments='":1}')],
            [("a", "ls", '{"p":1}')],
            id="as OpenAI does",
        ),
        pytest.param(
            [call(id="a", name="ls", arguments='{"p":1}')], [("a", "ls", '{"p":1}')], id="at once"
        ),
        pytest.param(
            [
                call(0, id="a", name="ls", arguments="{}"),
                call(1, id="b", name="cat", arguments="{}"),
            ],
            [("a", "ls", "{}"), ("b", "cat", "{}")],
            id="one after the other",
        ),
        pytest.param(
            [
                call(0, id="a", name="ls"),
                call(1, id="b", name="cat"),
                call(0, arguments='{"x'),
                call(1, arguments='{"y'),
                call(0, arguments='":1}'),
                call(1, arguments='":2}'),
            ],
            [("a", "ls", '{"x":1}'), ("b", "cat", '{"y":2}')],
            id="interleaved",
        ),
        pytest.param(
            [call(0, name="ls", arguments="{}"), call(1, name="cat", arguments="{}")],
            [("call_7_0", "ls", "{}"), ("call_7_1", "cat", "{}")],
            id="without ids",
        ),
        pytest.param(
            [
                call(n, id=given, name="ls", arguments="{}")
                for n, given in enumerate(("a_2", "a", "a"))
            ],
            [("a_2", "ls", "{}"), ("a", "ls", "{}"), ("a_2_2", "ls", "{}")],
            id="with an id that looks like one of ours",
        ),
        pytest.param(
            [
                call(0, id="a", name="ls", arguments="{}"),
                call(0, id="b", name="ls", arguments="{}"),
            ],
            [("a", "ls", "{}"), ("b", "ls", "{}")],
            id="all with the same index",
        ),
        pytest.param(
            [
                call(0, id="a", name="ls"),
                call(0, id="b", name="cat"),
                call(0, id="a", arguments='{"x":1}'),
                call(0, id="b", arguments='{"y":1}'),
            ],
            [("a", "ls", '{"x":1}'), ("b", "cat", '{"y":1}')],
            id="the same index, told apart by ids",
        ),
        pytest.param(
            [
                call(0, id="ls", name="ls", arguments="{}"),
                call(1, id="ls", name="ls", arguments="[]"),
            ],
            [("ls", "ls", "{}"), ("ls_1", "ls", "[]")],
            id="all with the same id",
        ),
        pytest.param(
            [
                call(None, id="a", name="ls"),
                call(None, arguments="{}"),
                call(None, id="b", name="cat"),
            ],
            [("a", "ls", "{}"), ("b", "cat", "{}")],
            id="without index",
        ),
        pytest.param(
            [call(id="a", name="ls"), call(id="random", arguments="{}")],
            [("a", "ls", "{}")],
            id="a new id in every chunk",
        ),
        pytest.param(
            [call(id="a", name="ls", arguments="{"), call(id="a", name="ls", arguments="}")],
            [("a", "ls", "{}")],
            id="the name in every chunk",
        ),
        pytest.param(
            [call(arguments='{"x":'), call(id="a", name="ls", arguments="1}")],
            [("a", "ls", '{"x":1}')],
            id="arguments before the name",
        ),
        pytest.param([call(id="a", name="ls")], [("a", "ls", "{}")], id="without arguments"),
        pytest.param(
            [{"tool_calls": [{"id": "a", "function": {"name": "ls", "arguments": {"p": 1}}}]}],
            [("a", "ls", '{"p":1}')],
            id="arguments that are an object",
        ),
        pytest.param(
            [{"function_call": {"name": "ls"}}, {"function_call": {"arguments": "{}"}}],
            [("call_7_0", "ls", "{}")],
            id="as it was before",
        ),
        pytest.param([call(id="a")], [], id="without a name"),
    ],
)
def test_calls_are_found_however_they_come(deltas, calls):
    parts = read(*deltas, end("tool_calls"))
    ended = [(p.id, p.name, p.input) for p in parts if isinstance(p, ToolCallEnd)]
    begun = [(p.id, p.name) for p in parts if isinstance(p, ToolCallBegin)]
    assert ended == calls
    assert begun == [(call_id, name) for call_id, name, _ in calls]
    for call_id, _, arguments in calls:
        text = "".join(p.text for p in parts if isinstance(p, ToolCallDelta) and p.id == call_id)
        assert (text or "{}") == arguments
        order = [type(p) for p in parts if getattr(p, "id", None) == call_id]
        assert order[0] is ToolCallBegin
        assert order[-1] is ToolCallEnd


@given(
    values=st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=3),
    data=st.data(),
)
def test_wherever_arguments_are_cut_the_call_is_the_same(values, data):
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    queues = []
    for index, text in enumerate(texts):
        cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=6))
        edges = [0, *sorted(cuts), len(text)]
        begin = call(index, id=f"c{index}", name="tool")
        queues.append([begin, *(call(index, text[a:b]) for a, b in pairwise(edges))])
    deltas = []
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        deltas.append(queue.pop(0))
    parts = read(*deltas, end("tool_calls"))
    ended = {p.id: p.input for p in parts if isinstance(p, ToolCallEnd)}
    assert ended == {f"c{index}": text for index, text in enumerate(texts)}
    assert parts[-1].reason is FinishReason.TOOL_USE
