"""Capsules from strangers: they reach nothing outside, and what is wrong with them is told in one sentence."""

import random
from contextlib import suppress

import orjson
import pytest
import trio
import trio.testing

from crush_trio.testing import CallTool, Say
from crush_trio.testing.capsule import CapsuleInvalid, NotReplayable, file, replay
from tests.testing.capsule.played import open_agent_server, run_recorded

WRONG = (None, True, -1, 2**64 - 1, 1e300, "", "/etc/passwd", [], {}, [None], {"": []}, "end")


def recorded_write(path):
    """Return the lines of a recorded run that has called `write`, which was not allowed."""

    async def play():
        call = CallTool("write", {"file_path": str(path), "content": "from a stranger"})
        async with open_agent_server([[call], [Say("done")]]) as (_server, place):
            more = {"permissions": {"mode": "deny"}}
            return await run_recorded(place, await place.create_session(), "go", "r1", **more)

    data = trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    return [orjson.loads(line) for line in data.splitlines()]


def written(lines):
    """Return lines as a file."""
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def test_a_capsule_that_names_no_tools_gets_none_that_writes(tmp_path):
    path = tmp_path / "written"
    lines = recorded_write(path)
    assert not replay(written(lines)).difference
    lines[0]["skip_permissions"] = True
    lines[0]["permissions"] = {"mode": "allow"}
    for line in lines:
        if line.get("k") == "request":
            line["tools"] = {}
    assert not replay(written(lines)).same
    assert not path.exists()


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (None, {"directory": 7}, "`directory` of line 1"),
        ("request", {"x": "1"}, "`x` of line"),
        ("request", {"tools": {"view": []}}, "pairs of a description"),
        ("part", {"x": 99}, "model call 99"),
        ("part", {"part": "other"}, "unknown kind"),
        ("parts", {"pieces": [["now", "text"]]}, "pairs of a time"),
        ("result", {"call": "another"}, "tool call that no line"),
        ("event", {"value": []}, "`value` of line"),
        ("event", {"t": True}, "no kind or no time"),
        ("stored", {"messages": [7]}, "cannot be played"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(tmp_path, kind, change, said):
    lines = recorded_write(tmp_path / "written")
    next(line for line in lines if line.get("k") == kind).update(change)
    with pytest.raises(CapsuleInvalid, match=said):
        replay(written(lines))


def test_a_run_of_a_thousand_years_is_not_waited_for(tmp_path):
    lines = recorded_write(tmp_path / "written")
    for line in lines:
        if line.get("k") in {"result", "end"}:
            line["t"] += 3e10
    with pytest.raises(NotReplayable, match="604800"):
        replay(written(lines))


async def test_a_replay_inside_of_trio_is_refused():
    with pytest.raises(RuntimeError, match="call it from a sync test or a thread"):
        replay(b"")


def test_no_more_of_a_file_is_read_than_a_capsule_has(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "LARGEST", 1000)
    long = tmp_path / "long.capsule"
    long.write_bytes(b"x" * 2000)
    with pytest.raises(CapsuleInvalid, match="more than 1,000 bytes"):
        replay(long)


def test_a_changed_capsule_is_invalid_or_differs_and_nothing_else(tmp_path):
    chance = random.Random(7)
    whole = recorded_write(tmp_path / "written")
    for _ in range(60):
        lines = orjson.loads(orjson.dumps(whole))
        value, way = lines, [chance.randrange(len(lines))]
        while isinstance(inner := value[way[-1]], dict | list) and inner and chance.random() < 0.8:
            value = inner
            way.append(chance.choice(list(value) if isinstance(value, dict) else range(len(value))))
        value[way[-1]] = chance.choice(WRONG)
        with suppress(CapsuleInvalid, NotReplayable):
            str(replay(written(lines)))
    assert not (tmp_path / "written").exists()
