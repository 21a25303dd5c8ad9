"""What an error means: by its status, its headers and its words."""

import json

import pytest

from crush_trio.providers.errors import (
    DETAIL_MOST,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    failure,
    retry_after,
    without,
)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (302, ProviderRefused),
        (400, ProviderRefused),
        (401, ProviderUnauthorized),
        (402, ProviderRefused),
        (403, ProviderUnauthorized),
        (404, ProviderRefused),
        (408, ProviderUnavailable),
        (409, ProviderUnavailable),
        (413, ProviderRefused),
        (422, ProviderRefused),
        (429, ProviderRateLimited),
        (500, ProviderUnavailable),
        (502, ProviderUnavailable),
        (529, ProviderUnavailable),
        (599, ProviderUnavailable),
    ],
)
def test_the_status_decides(status, error):
    found = failure(status, {}, "")
    assert type(found) is error
    assert found.status == status
    assert found.detail


def test_a_quota_that_is_spent_does_not_come_back_by_waiting():
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    assert type(failure(429, {}, json.dumps(body))) is ProviderRefused


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"error":{"message":"too long","type":"t","code":null}}', "too long"),
        (
            '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            "Overloaded",
        ),
        ('{"error":"model not found"}', "model not found"),
        ('{"message":"bad","code":3}', "bad"),
        ('{"detail":"bad"}', "bad"),
        ('{"detail":[{"loc":["body"],"msg":"bad"}]}', "[{'loc': ['body'], 'msg': 'bad'}]"),
        ('[{"error":{"code":400,"message":"bad","status":"INVALID"}}]', "bad"),
        ('{"error":{"message":"upstream","metadata":{"raw":"its words"}}}', "upstream: its words"),
        ("plain words\n on  two lines", "plain words on two lines"),
        ('{"reason":7}', '{"reason":7}'),
        ("5", "5"),
        ("", "503 Service Unavailable"),
    ],
)
def test_the_message_is_found_wherever_it_is(body, detail):
    assert failure(503, {}, body).detail == detail


def test_a_page_for_browsers_is_not_shown():
    headers = {"content-type": "text/html; charset=utf-8"}
    assert failure(502, headers, "<html>…</html>").detail == "502 Bad Gateway"


def test_a_status_without_a_name_is_a_number():
    assert failure(529, {}, "").detail == "status 529"


def test_a_redirect_tells_where_to():
    assert "https://x.test/v2" in failure(301, {"location": "https://x.test/v2"}, "").detail


def test_long_words_are_cut():
    detail = failure(400, {}, "x" * 5000).detail
    assert len(detail) == DETAIL_MOST
    assert detail.endswith("…")


def test_secrets_are_taken_out_the_longest_first():
    assert without("key: abcdefgh!", ["abcd", "abcdefgh", ""]) == "key: [redacted]!"
    assert without("a word", ["a"]) == "a word"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            30,
        ),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:27:00 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            0,
        ),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        (
            {"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00"},
            None,
        ),
    ],
)
def test_the_time_to_wait_is_seconds_or_a_date(headers, seconds):
    assert retry_after(headers) == seconds
