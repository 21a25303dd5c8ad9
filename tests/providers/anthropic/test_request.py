"""Requests in the words of Anthropic's messages: strict, and fit for any history."""

import base64

import pytest

from crush_trio.providers.anthropic.request import THINKING_TOKENS, USUAL_MOST, messages_body
from crush_trio.providers.base import ECHO, ToolSpec, pack
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

SEES = {"supports_attachments": True}
MARK = {"type": "ephemeral"}
LS = ToolSpec(name="ls", description="Lists.", parameters={"type": "object"})
CAT = ToolSpec(name="cat", description="Shows.", parameters={"type": "object"})


def body(asked, **more):
    return messages_body(asked, endpoint("anthropic", **more))


def messages(*said, **model):
    """Return the messages, without cache marks."""
    return body(request(*said, model=model, cache=False))["messages"]


def called(call_id="c1", arguments="{}", name="ls"):
    return ToolCallPart(id=call_id, name=name, input=arguments, finished=True)


def result(call_id="c1", content="a.txt", **more):
    return tool(ToolResultPart(tool_call_id=call_id, name="ls", content=content, **more))


def text(said):
    return {"type": "text", "text": said}


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


def test_user_and_assistant_take_turns():
    said = messages(
        user("a"),
        user("b"),
        assistant(TextPart(text="c"), called("c1"), called("c2")),
        result("c1", "one"),
        result("c2", "two"),
        user("d"),
        assistant(TextPart(text="e")),
    )
    assert [m["role"] for m in said] == ["user", "assistant", "user", "assistant"]
    assert said[0]["content"] == [text("a"), text("b")]
    assert said[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": [text("one")]},
        {"type": "tool_result", "tool_use_id": "c2", "content": [text("two")]},
        text("d"),
    ]


def test_blank_texts_and_empty_messages_are_left_out():
    said = messages(user("a"), assistant(TextPart(text=" \n")), user("b", TextPart(text="")))
    assert said == [{"role": "user", "content": [text("a"), text("b")]}]


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"p":1}', {"p": 1}), ("", {}), ("nonsense", {}), ("[1]", {}), ("{", {})],
)
def test_the_arguments_of_a_call_are_an_object(arguments, read):
    assert messages(user("a"), assistant(called("c1", arguments)))[1]["content"] == [
        {"type": "tool_use", "id": "c1", "name": "ls", "input": read}
    ]


def test_ids_of_others_are_made_fit_on_both_sides():
    said = messages(user("a"), assistant(called("functions.ls:0")), result("functions.ls:0"))
    assert said[1]["content"][0]["id"] == said[2]["content"][0]["tool_use_id"] == "functions_ls_0"


def test_names_that_a_model_invented_do_not_make_the_history_invalid():
    history = (user("a"), assistant(called(name="functions.ls")), result())
    assert messages(*history)[1]["content"][0]["name"] == "functions_ls"
    assert body(request(*history))["tools"][0]["name"] == "functions_ls"


def test_a_failed_result_says_so_and_an_empty_one_has_no_content():
    said = messages(user("a"), assistant(called()), result(content="", is_error=True))
    assert said[2]["content"] == [{"type": "tool_result", "tool_use_id": "c1", "is_error": True}]


def test_pictures_and_papers_go_as_they_are():
    picture = BinaryPart(path="a.png", mime_type="image/png", data=b"png")
    paper = BinaryPart(path="a.pdf", mime_type="application/pdf", data=b"%PDF")
    elsewhere = ImageUrlPart(url="https://x/y.png")
    [said] = messages(user("see", picture, paper, elsewhere), **SEES)
    data = base64.b64encode(b"png").decode()
    assert said["content"][1] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
    assert said["content"][2]["type"] == "document"
    assert said["content"][3]["source"] == {"type": "url", "url": "https://x/y.png"}


@pytest.mark.parametrize(
    ("mime_type", "sees"), [("image/png", False), ("image/tiff", True), ("application/zip", True)]
)
def test_what_the_model_cannot_read_is_mentioned(mime_type, sees):
    part = BinaryPart(path="a.x", mime_type=mime_type, data=b"x")
    [said] = messages(user("see", part), supports_attachments=sees)
    assert said["content"][1] == text(f"[a.x: this model cannot read {mime_type} content]")


@pytest.mark.item("D23b")
def test_pictures_may_stand_in_results():
    data = base64.b64encode(b"png").decode()
    said = messages(
        user("a"),
        assistant(called()),
        result(
            content="",
            data=data,
            mime_type="image/png",
            more_media=(ResultMedia(data=data, mime_type="image/png"),),
        ),
        **SEES,
    )
    assert [block["type"] for block in said[2]["content"][0]["content"]] == ["image", "image"]


@pytest.mark.item("D23b")
def test_a_picture_that_is_none_is_only_mentioned():
    broken = result(content="", data="not base64!", mime_type="image/png")
    said = messages(user("a"), assistant(called()), broken, **SEES)
    assert said[2]["content"][0]["content"] == [
        text("[ls: this model cannot read image/png content]")
    ]


# ── Thoughts ────────────────────────────────────────────────────────────────────────────────────


def thought(signature, thinking="hm"):
    return ReasoningPart(thinking=thinking, signature=signature)


def test_a_signed_thought_goes_back_before_everything_else():
    said = messages(user("a"), assistant(TextPart(text="b"), thought("sig"), called()), result())
    assert [block["type"] for block in said[1]["content"]] == ["thinking", "text", "tool_use"]
    assert said[1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "sig"}


def test_several_thoughts_go_back_as_they_came():
    blocks = [
        {"type": "thinking", "thinking": "a", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    said = messages(user("a"), assistant(thought(pack(blocks)), called()), result())
    assert said[1]["content"][:2] == blocks


@pytest.mark.parametrize("signature", ["", ECHO, pack([{"type": "reasoning.text"}]), "[broken"])
def test_thoughts_of_others_are_left_out(signature):
    said = messages(user("a"), assistant(thought(signature), called()), result())
    assert [block["type"] for block in said[1]["content"]] == ["tool_use"]


# ── Caches ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D23c")
def test_four_places_are_marked_for_the_cache():
    asked = request(
        user("a"),
        assistant(TextPart(text="b"), called()),
        result(),
        system=("x", "y"),
        tools=(LS, CAT),
    )
    sent = body(asked)
    assert [tool.get("cache_control") for tool in sent["tools"]] == [None, MARK]
    assert [block.get("cache_control") for block in sent["system"]] == [None, MARK]
    marks = [[b.get("cache_control") for b in m["content"]] for m in sent["messages"]]
    assert marks == [[None], [None, MARK], [MARK]]


@pytest.mark.item("D23c")
def test_nothing_is_marked_if_that_is_not_wanted():
    asked = request(user("a"), system=("x",), tools=(LS,), cache=False)
    assert "cache_control" not in str(body(asked))


@pytest.mark.item("D23c")
def test_thoughts_are_never_marked():
    sent = body(request(user("a"), assistant(thought("sig"))))
    assert "cache_control" not in sent["messages"][1]["content"][0]


# ── Settings ────────────────────────────────────────────────────────────────────────────────────


def test_the_least_that_is_sent():
    assert body(request(cache=False)) == {
        "model": "m1",
        "messages": [{"role": "user", "content": [text("hi")]}],
        "max_tokens": USUAL_MOST,
        "stream": True,
    }


def test_the_limit_is_the_requests_or_the_catalogues():
    assert body(request(max_tokens=7, model={"default_max_tokens": 9}))["max_tokens"] == 7
    assert body(request(model={"default_max_tokens": 9}))["max_tokens"] == 9


def test_tools_have_schemas():
    [sent] = body(request(tools=(LS,), cache=False))["tools"]
    assert sent == {"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}}


def test_history_with_calls_keeps_its_tools_and_may_not_use_them():
    sent = body(
        request(user("a"), assistant(called(), called("c2", name="cat")), result(), result("c2"))
    )
    assert [tool["name"] for tool in sent["tools"]] == ["ls", "cat"]
    assert sent["tool_choice"] == {"type": "none"}


CHOSEN = {"temperature": 0.5, "top_p": 0.5, "top_k": 5, "presence_penalty": 1}
THINKS = {"can_reason": True}
LEVELS = {"can_reason": True, "reasoning_levels": ("low", "high")}


def test_sampling_is_sent_as_far_as_it_is_known():
    sent = body(request(chosen=CHOSEN))
    assert sent.keys() & CHOSEN.keys() == {"temperature", "top_p", "top_k"}


def test_a_model_with_levels_thinks_as_it_sees_fit():
    sent = body(request(model=LEVELS, chosen={**CHOSEN, "reasoning_effort": "high"}))
    assert sent["output_config"] == {"effort": "high"}
    assert sent["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert not sent.keys() & CHOSEN.keys()


def test_a_model_without_levels_thinks_if_told_to():
    sent = body(request(model=THINKS, chosen={"think": True}, max_tokens=1000))
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": THINKING_TOKENS}
    assert sent["max_tokens"] == 1000 + THINKING_TOKENS
    assert "thinking" not in body(request(model=THINKS))
    assert "thinking" not in body(request(chosen={"think": True}))


def test_the_users_own_words_on_thinking_count():
    own = {"thinking": {"budget_tokens": 5000}, "effort": "max", "service_tier": "auto"}
    sent = body(request(model=LEVELS, chosen={"provider_options": own}, max_tokens=9000))
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 5000}
    assert sent["output_config"] == {"effort": "max"}
    assert sent["service_tier"] == "auto"
    assert sent["max_tokens"] == 9000
    assert "effort" not in sent


@pytest.mark.parametrize(("signature", "thinks"), [("sig", True), ("", False)])
def test_thinking_is_not_switched_on_between_a_call_and_its_result(signature, thinks):
    said = (user("a"), assistant(thought(signature), called()), result())
    sent = body(request(*said, model=THINKS, chosen={"think": True}))
    assert ("thinking" in sent) == thinks
    again = body(request(*said, user("go on"), model=THINKS, chosen={"think": True}))
    assert "thinking" in again


def test_options_and_extra_body_are_merged():
    usual = ModelOptions(provider_options={"metadata": {"a": 1}})
    sent = body(
        request(model={"options": usual}), options={"metadata": {"b": 2}}, extra_body={"x": 1}
    )
    assert sent["metadata"] == {"a": 1, "b": 2}
    assert sent["x"] == 1
