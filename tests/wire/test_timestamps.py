import pytest

from crush_trio.wire.fields import ZERO_TIME, is_timestamp, timestamp


def test_unix_seconds_become_text_in_utc():
    assert timestamp(1_767_225_600) == "2026-01-01T00:00:00Z"


def test_never_is_the_zero_time():
    assert timestamp(0) == ZERO_TIME
    assert is_timestamp(ZERO_TIME)


@pytest.mark.parametrize(
    "text",
    ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789Z", "2026-01-01T23:59:59.5+05:30"],
)
def test_rfc3339_times_are_recognised(text):
    assert is_timestamp(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-02-30T00:00:00Z",
        "2026-01-01T25:00:00Z",
        "2026-01-01T00:00:00Z\n",
        "٢٠٢٦-01-01T00:00:00Z",
    ],
)
def test_other_text_is_no_time(text):
    assert not is_timestamp(text)
