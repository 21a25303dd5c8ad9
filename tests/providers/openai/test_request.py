"""Requests in the words of chat completions, in the dialects of those who speak it."""

import base64

import pytest

from crush_trio.providers.base import ECHO, ToolSpec, pack
from crush_trio.providers.openai.request import UNSIGNED, Dialect, chat_body
from crush_trio.wire.config import ModelOptions
from crush_trio.wire.messages import (
    BinaryPart,
    ImageUrlPart,
    ReasoningPart,
    ResultMedia,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from tests.providers.asking import assistant, endpoint, request, tool, user

OPENAI = Dialect(openai=True, files=True)
ROUTER = Dialect(routes=True, files=True)
PLAIN = Dialect()
SEES = {"supports_attachments": True}
PICTURE = BinaryPart(path="a/shot.png", mime_type="image/png", data=b"png")
URL = "data:image/png;base64," + base64.b64encode(b"png").decode()
LS = ToolSpec(name="ls", description="Lists.", parameters={"type": "object"})


def body(asked, dialect=PLAIN, **more):
    return chat_body(asked, endpoint(**more), dialect)


def messages(*said, dialect=PLAIN, system=(), **model):
    return body(request(*said, model=model, system=system), dialect)["messages"]


def called(call_id="c1", name="ls", arguments="{}"):
    return ToolCallPart(id=call_id, name=name, input=arguments, finished=True)


def result(call_id="c1", content="a.txt", **more):
    return tool(ToolResultPart(tool_call_id=call_id, name="ls", content=content, **more))


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_in_words_is_all_strings():
    assert messages(
        user("hi"), assistant(TextPart(text="yes")), user("go"), system=("be", "", "good")
    ) == [
        {"role": "system", "content": "be\n\ngood"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "go"},
    ]


def test_calls_and_results_keep_their_ids():
    said = messages(
        user("hi"),
        assistant(TextPart(text="Look:"), called("c1"), called("c2", arguments="")),
        result("c1"),
        result("c2", "denied", is_error=True),
    )
    assert said[1:] == [
        {
            "role": "assistant",
            "content": "Look:",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "c2", "content": "denied"},
    ]


def test_a_name_that_a_model_invented_does_not_make_the_history_invalid():
    said = messages(user("a"), assistant(called(name="functions.ls")), result())
    assert said[1]["tool_calls"][0]["function"]["name"] == "functions_ls"


def test_an_answer_without_words_has_none():
    assert messages(user("hi"), assistant(called()), result())[1]["content"] is None


def test_a_picture_goes_as_a_data_url():
    [said] = messages(user("what is this?", PICTURE), **SEES)
    assert said["content"] == [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": URL}},
    ]


def test_a_picture_that_is_elsewhere_goes_by_its_address():
    [said] = messages(user("this", ImageUrlPart(url="https://x/y.png", detail="low")), **SEES)
    assert said["content"][1]["image_url"] == {"url": "https://x/y.png", "detail": "low"}


def test_a_model_that_cannot_see_is_told_that_there_was_something():
    [said] = messages(user("what is this?", PICTURE))
    assert (
        said["content"] == "what is this?\n\n[a/shot.png: this model cannot read image/png content]"
    )


@pytest.mark.parametrize(("dialect", "kind"), [(OPENAI, "file"), (ROUTER, "file"), (PLAIN, "text")])
def test_files_go_to_those_who_read_them(dialect, kind):
    paper = BinaryPart(path="a/paper.pdf", mime_type="application/pdf", data=b"%PDF")
    said = messages(user("read", paper, PICTURE), dialect=dialect, **SEES)[0]["content"]
    assert said[1]["type"] == kind
    if kind == "file":
        assert said[1]["file"]["filename"] == "paper.pdf"
        assert said[1]["file"]["file_data"].startswith("data:application/pdf;base64,")


@pytest.mark.item("D23b")
def test_files_that_tools_return_follow_all_results_of_the_step():
    media = {"data": base64.b64encode(b"png").decode(), "mime_type": "image/png"}
    said = messages(
        user("hi"),
        assistant(called("c1"), called("c2")),
        result("c1", "one", **media),
        result("c2", "two"),
        assistant(TextPart(text="I see")),
        **SEES,
    )
    assert [m["role"] for m in said] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert said[2]["content"] == "one\n[the image/png content follows in the next message]"
    assert said[4]["content"][1] == {"type": "image_url", "image_url": {"url": URL}}


@pytest.mark.item("D23b")
def test_the_last_results_files_are_not_forgotten():
    media = {"data": base64.b64encode(b"png").decode(), "mime_type": "image/png"}
    said = messages(user("hi"), assistant(called()), result(content="", **media), **SEES)
    assert said[-1]["role"] == "user"
    assert said[-2]["content"] == "[the image/png content follows in the next message]"


@pytest.mark.item("D23b")
def test_all_files_of_a_result_follow():
    data = base64.b64encode(b"png").decode()
    media = {"data": data, "mime_type": "image/png"}
    several = (ResultMedia(data=data, mime_type="image/png"),)
    said = messages(
        user("hi"), assistant(called()), result(content="", more_media=several, **media), **SEES
    )
    assert [each["type"] for each in said[-1]["content"]] == ["text", "image_url", "image_url"]


@pytest.mark.item("D23b")
@pytest.mark.parametrize("data", ["not base64!", base64.b64encode(b"png").decode()])
def test_files_that_cannot_be_shown_are_only_mentioned(data):
    sees = {} if data.isalnum() else SEES
    media = {"data": data, "mime_type": "image/png"}
    said = messages(user("hi"), assistant(called()), result(content="", **media), **sees)
    assert len(said) == 3
    assert said[2]["content"] == "[ls: this model cannot read image/png content]"


# ── Thoughts ────────────────────────────────────────────────────────────────────────────────────


def thought(text="hm", signature=ECHO):
    return ReasoningPart(thinking=text, signature=signature)


def test_thoughts_go_back_under_the_name_they_came_under():
    said = messages(user("hi"), assistant(thought(), called()), result())
    assert said[1][ECHO] == "hm"


def test_once_a_provider_has_thought_every_call_says_what_was_thought():
    said = messages(
        user("hi"),
        assistant(thought(), called("c1")),
        result("c1"),
        assistant(called("c2")),
        result("c2"),
        assistant(thought("other", "signed by another"), called("c3")),
        result("c3"),
        assistant(thought(), TextPart(text="done")),
    )
    assert [m.get(ECHO) for m in said if m["role"] == "assistant"] == ["hm", "", "", None]


@pytest.mark.parametrize("signature", ["", "signed by another", pack([{"type": "reasoning.text"}])])
def test_thoughts_of_others_are_left_out(signature):
    said = messages(user("hi"), assistant(thought(signature=signature), called()), result())
    assert said[1].keys() == {"role", "content", "tool_calls"}


def test_a_router_gets_its_details_back():
    details = [{"type": "reasoning.text", "text": "hm", "signature": "s"}]
    said = messages(
        user("hi"), assistant(thought(signature=pack(details)), called()), result(), dialect=ROUTER
    )
    assert said[1]["reasoning_details"] == details
    assert ECHO not in said[1]


@pytest.mark.parametrize(
    ("model", "signed"),
    [
        ("gemini-3-pro", True),
        ("models/gemini-3.1-flash", True),
        ("gemini-flash-latest", True),
        ("gemini-2.5-pro", False),
        ("gemini-1.5-pro", False),
    ],
)
def test_new_geminis_get_calls_that_look_signed(model, signed):
    said = messages(
        user("hi"),
        assistant(called("a"), called("b")),
        result("a"),
        result("b"),
        dialect=Dialect(gemini=True),
        id=model,
    )
    first, second = said[1]["tool_calls"]
    assert ("extra_content" in first) == signed
    assert "extra_content" not in second
    if signed:
        assert first["extra_content"] == {"google": {"thought_signature": UNSIGNED}}


# ── Caches ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D23c")
def test_a_router_is_told_where_claudes_caches_may_end():
    conversation = (
        user("a"),
        assistant(TextPart(text="b")),
        user("c"),
        assistant(called()),
        result(),
    )
    claude = {"id": "anthropic/claude-sonnet-4"}
    asked = request(*conversation, model=claude, system=("be good",))
    marked = [
        isinstance(m["content"], list) and "cache_control" in m["content"][-1]
        for m in body(asked, ROUTER)["messages"]
    ]
    assert marked == [True, False, False, False, False, True]  # a call without words has no place
    for other in (
        body(request(*conversation, model=claude, cache=False), ROUTER),
        body(request(*conversation, model={"id": "openai/gpt-5"}), ROUTER),
        body(request(*conversation, model=claude), PLAIN),
    ):
        assert not any(isinstance(m["content"], list) for m in other["messages"])


# ── Settings ────────────────────────────────────────────────────────────────────────────────────


def test_the_least_that_is_sent():
    assert body(request()) == {
        "model": "m1",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tools_are_functions():
    assert body(request(tools=(LS,)))["tools"] == [
        {
            "type": "function",
            "function": {"name": "ls", "description": "Lists.", "parameters": {"type": "object"}},
        }
    ]


@pytest.mark.parametrize(
    ("dialect", "name"),
    [(PLAIN, "max_tokens"), (ROUTER, "max_tokens"), (OPENAI, "max_completion_tokens")],
)
def test_the_limit_has_the_name_that_the_provider_knows(dialect, name):
    sent = body(request(max_tokens=100), dialect)
    assert sent[name] == 100
    assert len(sent) == 5


CHOSEN = {"temperature": 0.0, "top_p": 0.5, "top_k": 7, "presence_penalty": 0.1}


@pytest.mark.parametrize(
    ("dialect", "reasons", "sent"),
    [
        (PLAIN, True, {"temperature", "top_p", "top_k", "presence_penalty"}),
        (OPENAI, False, {"temperature", "top_p", "presence_penalty"}),
        (OPENAI, True, set()),
    ],
)
def test_only_what_the_model_understands_is_sent(dialect, reasons, sent):
    asked = request(chosen=CHOSEN, model={"can_reason": reasons})
    assert body(asked, dialect).keys() & CHOSEN.keys() == sent


def test_what_the_user_chose_wins_over_the_catalogue_and_zero_is_a_choice():
    usual = ModelOptions(temperature=1.0, top_p=0.9)
    sent = body(request(chosen={"temperature": 0.0}, model={"options": usual}))
    assert (sent["temperature"], sent["top_p"]) == (0.0, 0.9)


LEVELS = {"can_reason": True, "reasoning_levels": ("low", "high")}


@pytest.mark.parametrize(
    ("model", "wanted", "effort"),
    [
        (LEVELS, "high", "high"),
        (LEVELS, "", "low"),
        (LEVELS, "extreme", "low"),
        ({**LEVELS, "default_reasoning_effort": "high"}, "", "high"),
        ({**LEVELS, "default_reasoning_effort": "medium"}, "", "low"),
        ({**LEVELS, "can_reason": False}, "high", None),
        ({"can_reason": True}, "high", None),
    ],
)
def test_the_model_thinks_as_hard_as_it_can_be_told_to(model, wanted, effort):
    asked = request(model=model, chosen={"reasoning_effort": wanted})
    assert body(asked).get("reasoning_effort") == effort
    expected = {"enabled": True, "effort": effort} if effort else None
    assert body(asked, ROUTER).get("reasoning") == expected


def test_options_are_merged_and_the_user_has_the_last_word():
    asked = request(
        model={"options": ModelOptions(provider_options={"a": {"x": 1, "y": 1}, "b": 1})},
        chosen={"provider_options": {"a": {"y": 3}, "service_tier": "flex"}},
    )
    sent = body(
        asked,
        options={"a": {"y": 2, "z": 2}, "api_version": "1"},
        extra_body={"b": 4, "stream": False},
    )
    assert sent["a"] == {"x": 1, "y": 3, "z": 2}
    assert sent["b"] == 4
    assert sent["service_tier"] == "flex"
    assert "api_version" not in sent
    assert sent["stream"] is True
