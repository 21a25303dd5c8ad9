"""What the user answers to the wishes of a project, in an open workspace."""

import json
import stat

import pytest
import trio

from crush_trio.config import ConfigInvalid, open_live_config
from crush_trio.config.trust.answers import TrustAnswer
from crush_trio.wire.requests import Scope
from tests.config.homes import Home

ONCE, ALWAYS, NO = TrustAnswer.ONCE, TrustAnswer.ALWAYS, TrustAnswer.NO
WISH = {"env": {"A": "theirs"}}


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    home.write(home.project_file, WISH)
    return home


def opened(home, **kwargs):
    return open_live_config(home.places(), **kwargs)


async def test_once_counts_while_the_workspace_is_open(home):
    async with opened(home) as live:
        assert await live.answer_wishes(live.current.wishes, ONCE)
        assert (live.current.env, live.current.wishes) == ({"A": "theirs"}, None)
        await live.reload()
        await live.set(Scope.WORKSPACE, "options.debug", True)
        assert live.current.env == {"A": "theirs"}, "also after other changes"
    assert not home.data_file.exists()
    async with opened(home) as live:
        assert (live.current.env, live.current.wishes.declined) == ({}, False)


async def test_once_counts_for_what_was_shown_only(home):
    async with opened(home) as live:
        await live.answer_wishes(live.current.wishes, ONCE)
        home.write(home.project_file, {"env": {"A": "other"}})
        await live.reload()
        assert live.current.env == {}
        assert live.current.wishes is not None


async def test_always_is_written_to_the_users_file(home):
    async with opened(home) as live:
        assert await live.answer_wishes(live.current.wishes, ALWAYS)
        assert (live.current.env, live.current.wishes) == ({"A": "theirs"}, None)
    own = {"crush_trio": {"trusted_directories": [str(home.project)]}}
    assert json.loads(home.data_file.read_text()) == own
    assert stat.S_IMODE(home.data_file.stat().st_mode) == 0o600
    async with opened(home) as live:
        assert live.current.env == {"A": "theirs"}


async def test_a_denial_is_remembered_until_the_files_change(home):
    async with opened(home) as live:
        assert await live.answer_wishes(live.current.wishes, NO)
        assert (live.current.env, live.current.wishes.declined) == ({}, True)
    declined = home.places().declined_file
    assert list(json.loads(declined.read_text())) == [str(home.project)]
    assert stat.S_IMODE(declined.stat().st_mode) == 0o600
    async with opened(home) as live:
        assert live.current.wishes.declined
        home.write(home.project_file, {"env": {"A": "theirs", "B": "more"}})
        assert not (await live.refresh_wishes()).wishes.declined


async def test_an_answer_to_other_wishes_does_not_count(home):
    async with opened(home) as live:
        asked = live.current.wishes
        home.write(home.project_file, {"env": {"LD_PRELOAD": "evil"}})
        for answer in TrustAnswer:
            assert not await live.answer_wishes(asked, answer)
        assert live.current.env == {}
        assert "LD_PRELOAD" in live.current.wishes.items[0].text, "what is asked next"
    assert not home.data_file.exists()
    assert not home.places().declined_file.exists()


async def test_trust_that_another_program_has_written_is_seen(home):
    async with opened(home) as live:
        assert (await live.refresh_wishes()).revision == 1, "nothing new"
        home.trust()
        assert (await live.refresh_wishes()).env == {"A": "theirs"}
        assert live.current.wishes is None


async def test_what_cannot_be_loaded_is_not_trusted(home):
    home.write(home.project_file, {"hooks": {"PreToolUse": [{"command": "x", "matcher": "("}]}})
    async with opened(home) as live:
        wishes = live.current.wishes
        for answer in (ONCE, ALWAYS):
            with pytest.raises(ConfigInvalid, match="regular expression"):
                await live.answer_wishes(wishes, answer)
        assert (await live.reload()).wishes == wishes
    assert not home.data_file.exists()


async def test_a_cancelled_caller_does_not_lose_the_answer(home):
    async with opened(home) as live:
        with trio.CancelScope() as scope:
            scope.cancel()
            await live.answer_wishes(live.current.wishes, ALWAYS)
        assert (await live.newer_than(1)).env == {"A": "theirs"}


async def test_changes_of_the_workspace_stay_the_users_in_a_project_that_is_not_trusted(home):
    async with opened(home) as live:
        await live.set(Scope.WORKSPACE, "env.MINE", "1")
        assert live.current.env == {"MINE": "1"}
    assert not home.workspace_file.parent.exists()
    for each in (home.own_file, home.own_file.parent, home.places().workspaces):
        assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0, each
