"""What an error means: by its status, its headers and its words."""

import json

import pytest

from crush_trio.providers.errors import (
    ProviderContextFull,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from crush_trio.providers.failures import (
    DETAIL_MOST,
    failure,
    failure_in_stream,
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
        ({"retry-after": f"Wed, 21 Oct 2026 07:28:30 +{'9' * 20}"}, None),
        (
            {"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00"},
            None,
        ),
    ],
)
def test_the_time_to_wait_is_seconds_or_a_date(headers, seconds):
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("error", "window"),
    [
        (
            {
                "code": "context_length_exceeded",
                "message": "This model's maximum context length is 8192 tokens. However, your "
                "messages resulted in 9001 tokens.",
            },
            8192,
        ),
        ({"message": "prompt is too long: 201,234 tokens > 200,000 maximum"}, 200_000),
        (
            {"message": "input length and `max_tokens` exceed context limit: 1 + 2 > 200000"},
            200_000,
        ),
        (
            {
                "message": "The input token count (1100000) exceeds the maximum number of tokens "
                "allowed (1048576)."
            },
            1_048_576,
        ),
        (
            {
                "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum "
                "context length"
            },
            32_768,
        ),
        (
            {
                "type": "exceed_context_size_error",
                "message": "the request exceeds the available context size",
                "n_ctx": 4096,
            },
            4096,
        ),
        (
            {
                "message": "This model's maximum prompt length is 131072 but the request contains "
                "140000 tokens."
            },
            131_072,
        ),
        ({"message": "Please reduce the length of the messages or completion."}, 0),
        ({"message": "number of tokens in the prompt cannot exceed 4081"}, 4081),
        ({"message": "`inputs` tokens + `max_new_tokens` must be <= 8193."}, 8193),
        ({"message": "prompt token count of 128001 exceeds the limit of 128000"}, 128_000),
        ({"message": "Your request exceeded model token limit: 131072"}, 131_072),
        ({"message": "context window exceeds limit (2013)"}, 0),
        ({"message": "Range of input length should be [1, 30720]"}, 30_720),
        ({"message": "exceed context limit: 190000 + 20000 > 200000"}, 200_000),
        ({"message": "Prompt exceeds max length"}, 0),
        ({"message": "prompt too long; exceeded max context length by 123 tokens"}, 0),
        ({"message": "litellm.ContextWindowExceededError: BadRequestError"}, 0),
        ({"message": "The number of tokens is greater than the context length. Try"}, 0),
        (
            {
                "message": "The prompt (length 9000) is longer than the maximum model length of 8192."
            },
            8192,
        ),
        (
            {"message": "request (5000 tokens) exceeds the available context size (4096 tokens)"},
            4096,
        ),
        (
            {"message": "The input token count exceeds the number of tokens allowed 1048576."},
            1_048_576,
        ),
        ({"message": "Input is too long for requested model."}, 0),
        (
            {
                "message": "Input tokens exceed the configured limit of 272000 tokens. Your messages "
                "resulted in 282089 tokens."
            },
            272_000,
        ),
        ({"message": "the prompt exceeds the model's maximum context limit"}, 0),
        ({"message": "tokens in request more than max tokens allowed"}, 0),
        ({"message": "The total number of tokens in the prompt exceeds the limit"}, 0),
        ({"message": "total tokens of image and text exceed max message tokens"}, 0),
        ({"message": "Too many input tokens"}, 0),
        ({"message": "Input length 40000 exceeds the maximum length 32768"}, 0),
        (
            {
                "message": "'content': string too long. Expected a string with maximum length 10485760"
            },
            0,
        ),
        ({"message": "The input length exceeds the context length"}, 0),
        (
            {"message": "Trying to keep the first 5000 tokens when context length of only 4096"},
            4096,
        ),
    ],
)
def test_a_conversation_that_is_too_long_is_known_in_every_spelling(error, window):
    for found in (
        failure(400, {}, json.dumps({"error": error})),
        failure(500, {}, json.dumps({"error": error})),
        failure_in_stream(error),
        failure_in_stream({"type": "invalid_request_error", **error}),
    ):
        assert type(found) is ProviderContextFull
        assert found.window == window


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens is too large: 100000"),
        (400, "max_tokens exceeds the maximum number of output tokens of this model: 4096"),
        (429, "Too many input tokens per minute"),
        (400, "unknown parameter: context_window"),
        (429, "Request too large for model on tokens per minute (TPM): Limit 6000"),
        (413, "Request exceeds the maximum size"),
    ],
)
def test_other_refusals_are_not_about_the_context(status, message):
    found = failure(status, {}, json.dumps({"error": {"message": message}}))
    assert type(found) is not ProviderContextFull


def test_a_wrong_url_is_named_with_what_came_back():
    html = {"content-type": "text/html"}
    found = failure(404, html, "<html>", url="https://x.test/chat/completions")
    assert found.detail == "https://x.test/chat/completions answered 404 Not Found; check base_url"
    body = json.dumps({"error": {"message": "no such model"}})
    found = failure(404, {}, body, url="https://x.test/v1/messages")
    assert found.detail == "no such model (https://x.test/v1/messages answered 404 Not Found)"


@pytest.mark.parametrize("window", [-5, 0, True, None, 10**20, "9" * 5000])
def test_a_limit_that_cannot_be_one_is_not_believed(window):
    error = {"message": f"prompt is too long: 5 > {'9' * 5000}", "n_ctx": window, "code": window}
    found = failure(400, {}, json.dumps({"error": error}))
    assert isinstance(found, ProviderContextFull)
    assert found.window == 0
