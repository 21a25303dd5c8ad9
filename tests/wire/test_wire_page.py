"""The examples of `docs/wire.md` are valid, and the codec reads and writes them unchanged.

A comment before a block names what it is: `Session`, `[Session]` for a list of them, `{Session}` for
a mapping of names to them.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from crush_trio.wire.answers import ErrorBody, ShellResult, Version
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.config import AgentInfo, Config, SelectedModel, WorkspaceView
from crush_trio.wire.events import Envelope, PayloadType
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import LspClientInfo, McpClientInfo, McpPrompt, SkillInfo
from crush_trio.wire.messages import PARTS, Message, Part
from crush_trio.wire.requests import (
    AgentMessage,
    AnswerRequest,
    ControlRequest,
    GrantRequest,
    WorkspaceRequest,
)
from crush_trio.wire.views import Session

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text("utf-8")

CLASSES = {
    "[McpPrompt]": tuple[McpPrompt, ...],
    "[SkillInfo]": tuple[SkillInfo, ...],
    "{LspClientInfo}": Mapping[str, LspClientInfo],
    "{McpClientInfo}": Mapping[str, McpClientInfo],
    "{[JsonObject]}": Mapping[str, tuple[JsonObject, ...]],
    "Part": Part,
    **{
        cls.__name__: cls
        for cls in (
            AgentInfo,
            AgentMessage,
            AnswerRequest,
            Config,
            ControlRequest,
            Envelope,
            ErrorBody,
            GrantRequest,
            Message,
            SelectedModel,
            Session,
            ShellResult,
            Version,
            WorkspaceView,
            WorkspaceRequest,
        )
    },
}

BLOCKS = re.findall(r"^<!-- (\S+) -->\n```(jsonl?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [
    (name, text)
    for name, language, block in BLOCKS
    for text in (block.splitlines() if language == "jsonl" else [block])
]


def test_every_block_of_json_says_what_it_is():
    assert len(BLOCKS) == len(re.findall(r"^```jsonl?$", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_is_written_as_it_was_read(name, text):
    assert orjson.loads(encode(decode(text, CLASSES[name]))) == orjson.loads(text)


def test_there_is_an_example_of_every_event_and_every_part():
    shown = {name: set() for name, _ in EXAMPLES}
    for name, text in EXAMPLES:
        shown[name].add(orjson.loads(text).get("type") if text.startswith("{") else None)
    assert shown["Envelope"] == set(PayloadType)
    assert shown["Part"] == set(PARTS)


def test_the_json_in_the_tables_is_valid():
    short = [
        text
        for text in re.findall(r"`(\{.*?\})`", PAGE)
        if "{W}" not in text and "{wid}" not in text
    ]
    assert len(short) > 20
    for text in short:
        orjson.loads(text)


def test_the_frames_of_the_page_carry_valid_json():
    frames = re.findall(r"^data: (.*)$", PAGE, re.MULTILINE)
    assert len(frames) > 4
    for text in frames:
        orjson.loads(text)
