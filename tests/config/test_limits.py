"""Limits in the user's files and in the environment."""

import pytest

from crush_trio.config import ConfigWarningKind
from crush_trio.config.checks import chosen_limits
from crush_trio.config.errors import ConfigInvalid
from crush_trio.errors import LimitInvalid
from crush_trio.limits import SizeLimits
from tests.config.homes import texts


def own(**limits):
    return {"crush_trio": {"limits": limits}}


def chosen(home, **variables):
    return chosen_limits({"HOME": str(home.home), **variables})


def test_without_a_word_they_are_as_they_come(home):
    assert chosen(home) == SizeLimits()


def test_the_environment_wins_over_the_users_files_and_the_later_file_over_the_earlier(home):
    home.write(home.user_file, own(title=1, queue="2", prompt="3KiB"))
    home.write(home.data_file, own(queue=4))
    limits = chosen(home, CRUSH_TRIO_LIMITS="prompt=5, answer=6")
    assert limits == SizeLimits(title=1, queue=4, prompt=5, answer=6)


@pytest.mark.parametrize("where", ["project_file", "workspace_file"])
async def test_a_project_sets_no_limit_and_is_told_so_even_if_it_is_trusted(home, where):
    file = home.write(getattr(home, where), own(answer=1))
    home.trust()
    loaded = await home.load()
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == [
        f"{file}: crush_trio: ignored: only the user's own files can set this key"
    ]


async def test_a_file_of_one_workspace_that_is_the_users_sets_none_either(home):
    home.write(home.user_file, {"options": {"data_directory": str(home.root / "data")}})
    file = home.write(home.root / "data" / "crush.json", own(answer=1))
    loaded = await home.load()
    assert texts(loaded, ConfigWarningKind.NOT_USED) == [
        f"{file}: crush_trio.limits: ignored: limits count for the whole server; write them into "
        f"{home.data_file}"
    ]


async def test_a_limit_of_the_users_is_nothing_to_speak_of(home):
    home.write(home.user_file, own(answer="32MiB"))
    kinds = {
        ConfigWarningKind.NOT_USED,
        ConfigWarningKind.NOT_TRUSTED,
        ConfigWarningKind.UNKNOWN_KEY,
    }
    assert not kinds & {warning.kind for warning in (await home.load()).warnings}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            {"answers": 1},
            "crush_trio.limits: there is no limit named 'answers'; write one of answer",
        ),
        ({"answer": "much"}, "crush_trio.limits: answer cannot be 'much'; write a number of bytes"),
        ({"answer": None}, "crush_trio.limits: answer cannot be None"),
    ],
)
async def test_a_wrong_limit_in_a_file_is_refused_with_the_file_and_the_place(
    home, limits, sentence
):
    file = home.write(home.user_file, own(**limits))
    with pytest.raises(ConfigInvalid) as caught:
        chosen(home)
    assert str(file) in str(caught.value)
    assert sentence in str(caught.value)
    with pytest.raises(ConfigInvalid, match="limit"):
        await home.load()


def test_a_wrong_limit_in_the_environment_is_refused_by_the_variables_name(home):
    with pytest.raises(LimitInvalid, match="CRUSH_TRIO_LIMITS: queue cannot be 'x'"):
        chosen(home, CRUSH_TRIO_LIMITS="queue=x")
