"""The limits: what they are called, and how people may write them."""

import re

import attrs
import pytest

from crush_trio.errors import LimitInvalid
from crush_trio.limits import DEFAULTS, LIMIT_INFO, SizeLimits, read_pair, read_pairs, shown
from crush_trio.server.status import STATUS

MIB = 1024 * 1024


def test_the_defaults_are_the_promised_ones():
    assert attrs.asdict(SizeLimits()) == {
        "answer": 16 * MIB,
        "tool_output": MIB,
        "title": 1000,
        "prompt": 4 * MIB,
        "attachment": 5 * MIB,
        "attachments": 20 * MIB,
        "queue": 10_000,
        "active_runs": 64,
        "workspaces": 256,
        "connections": 4096,
        "heads": 128,
        "head_time": 10.0,
        "reserve": 64,
    }
    assert DEFAULTS.differing() == {}


@pytest.mark.parametrize("about", LIMIT_INFO.values(), ids=LIMIT_INFO)
def test_a_limit_has_a_meaning_and_a_code_that_has_a_status(about):
    assert about.meaning
    assert not about.code or about.code in STATUS


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("answer=4096", 4096),
        ("answer=16MiB", 16 * MIB),
        ("answer=16 MiB", 16 * MIB),
        ("answer = 1.5MiB", 3 * MIB // 2),
        ("answer=64kB", 64_000),
        ("answer=64KiB", 65_536),
        ("answer=2GB", 2_000_000_000),
        ("answer=10B", 10),
        ("title=5", 5),
        ("head_time=2.5", 2.5),
        ("queue=1", 1),
    ],
)
def test_a_limit_is_written_as_a_name_and_a_value(pair, value):
    name, found = read_pair(pair)
    assert found == value
    assert getattr(SizeLimits().changed({name: found}), name) == value


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("answers=1", r"no limit named 'answers'; write one of answer, .*reserve"),
        ("answer", r"'answer' sets nothing; write NAME=VALUE"),
        ("answer=", r"answer cannot be ''; write a number of bytes above 0.*16MiB"),
        ("answer=much", r"answer cannot be 'much'; write a number of bytes"),
        ("answer=0", r"answer cannot be '0'"),
        ("answer=-1", r"answer cannot be '-1'"),
        ("answer=1TB", r"answer cannot be '1TB'"),
        ("answer=0.5", r"answer cannot be '0.5'"),
        ("answer=nan", r"answer cannot be 'nan'"),
        ("answer=" + "9" * 400, r"answer cannot be"),
        ("title=1KiB", r"title cannot be '1KiB'; write a whole number above 0"),
        ("queue=1.5", r"queue cannot be '1.5'; write a whole number above 0"),
        ("head_time=soon", r"head_time cannot be 'soon'; write a number of seconds above 0"),
    ],
)
def test_a_wrong_one_is_told_what_to_write(pair, sentence):
    with pytest.raises(LimitInvalid) as caught:
        read_pair(pair)
    assert caught.value.code == "limit_invalid"
    assert re.search(sentence, str(caught.value))


def test_several_are_separated_by_commas_and_the_last_one_counts():
    assert read_pairs("") == {}
    assert read_pairs("queue=2, title=3,queue=4,") == {"queue": 4, "title": 3}


@pytest.mark.parametrize("value", [True, None, [1], {}, 0, -1, float("nan"), float("inf")])
def test_what_is_no_number_above_0_is_refused_in_a_file_too(value):
    with pytest.raises(LimitInvalid, match="queue cannot be"):
        SizeLimits().changed({"queue": value})


@pytest.mark.parametrize("value", [0, -1, "12", None, True])
def test_a_program_cannot_set_what_is_no_limit(value):
    with pytest.raises(LimitInvalid, match="queue cannot be"):
        SizeLimits(queue=value)


def test_those_that_differ_are_told_in_units_for_people():
    limits = SizeLimits(answer=32 * MIB, title=2000, head_time=2.5, prompt=1001)
    assert [shown(name, value) for name, value in limits.differing().items()] == [
        *("32 MiB", "2,000 characters", "1,001 bytes", "2.5 seconds")
    ]
