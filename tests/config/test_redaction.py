"""Secrets do not survive: not by name, not by look, not in any corner of a value."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.config.redaction import REDACTED, is_secret_name, redact, redact_text
from crush_trio.wire.codec import structure, unstructure
from crush_trio.wire.config import Config, McpServerConfig, OAuthToken, ProviderConfig

SECRET_NAMES = [
    *("api_key", "apiKey", "APIKey", "x-api-key", "OPENAI_API_KEY", "OPENAI_APIKEY", "STRIPE_KEY"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "private_key", "SSH_KEY_BASE64", "api_keys"),
    *("token", "access_token", "refreshToken", "GITHUB_TOKEN", "GITHUB_TOKEN_2", "--token"),
    *("password", "PGPASSWORD", "db-passwd", "passphrase", "MYSQL_PWD", "GITHUB_PAT"),
    *("DB_PASS", "smtpPass", "SSHPASS"),
    *("secret", "client_secret", "oauth_client_secret", "CLIENT_SECRETS", "credentials"),
    *("Authorization", "Proxy-Authorization", "Cookie", "set-cookie", "NPM_AUTH"),
]
HARMLESS_NAMES = [
    *("key", "path", "PWD", "OLDPWD", "HOME", "id", "client_id", "session_id", "token_url"),
    *("auth_url", "public_key", "SSH_AUTH_SOCK", "TOKEN_FILE", "expires_at", "author", "monkey"),
    *("COMPASS", "bypass", "pass"),
    "",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_of_secrets_is_known_however_it_is_written(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_other_names_are_left_alone(name):
    assert not is_secret_name(name)


# ── Text ───────────────────────────────────────────────────────────────────────────────────────

HIDDEN = "hunter2hunter2"
TEXTS = [
    f"password={HIDDEN}",
    f"password = {HIDDEN}",
    f"password: {HIDDEN}",
    f'{{"api_key": "{HIDDEN}"}}',
    f"{{'api_key': '{HIDDEN}'}}",
    f'{{"api_key": "quote \\" {HIDDEN}"}}',
    f'{{\\"api_key\\":\\"{HIDDEN}\\"}}',
    f'password="two words {HIDDEN}"',
    f'password="cut off {HIDDEN}',
    f"Authorization: Bearer {HIDDEN}",
    f"authorization: Basic {HIDDEN}",
    f"Authorization: Custom a {HIDDEN}",
    f'"Authorization": "Bearer {HIDDEN}"',
    f"Cookie: a=1; session={HIDDEN}; b=2",
    f"sent\\nbearer {HIDDEN}",
    f"sent with bearer {HIDDEN} to the server",
    f"GET /v1?api_key={HIDDEN}&x=1",
    f"GET /v1?a=1&key={HIDDEN}#top",
    f"url=https://h/?token={HIDDEN}",
    f"https://me:{HIDDEN}@example.org/path",
    f"postgres://{HIDDEN}@db/name",
    f"run --api-key={HIDDEN} now",
    f"A=1 GITHUB_TOKEN={HIDDEN} B=2",
    f"Server=db;Password={HIDDEN};Port=1",
    f"providers.openai.api_key={HIDDEN}",
    f"key sk-{HIDDEN}{HIDDEN} was refused",
    f"ghp_{HIDDEN}{HIDDEN}",
    f'{{"content": "first\\nghp_{HIDDEN}{HIDDEN}"}}',
    f"\\tsk-{HIDDEN}{HIDDEN}",
    f"\x1b[1;32mghp_{HIDDEN}{HIDDEN}\x1b[0m",
    f"\x1b[mxoxb-{HIDDEN}",
    f"xoxb-{HIDDEN}",
    f"AIza{HIDDEN}{HIDDEN}{HIDDEN}",
    f"eyJhbGciOiJ9.{HIDDEN}.{HIDDEN}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{HIDDEN}\n-----END RSA PRIVATE KEY-----\nafter",
    f"-----BEGIN PRIVATE KEY-----\n{HIDDEN}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_in_text_does_not_survive(text):
    redacted = redact_text(text)
    assert HIDDEN not in redacted
    assert REDACTED in redacted


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_redacted_stays_as_it_is(text):
    assert redact_text(redact_text(text)) == redact_text(text)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("A=1 API_KEY=x B=2", f"A=1 API_KEY={REDACTED} B=2"),
        ('{"api_key": "x", "id": "y"}', f'{{"api_key": "{REDACTED}", "id": "y"}}'),
        ("https://me:pw@host/p?q=1", f"https://{REDACTED}@host/p?q=1"),
        ("Authorization: Bearer x\nHost: h", f"Authorization: {REDACTED}\nHost: h"),
        ("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nafter", f"{REDACTED}\nafter"),
    ],
)
def test_what_stands_around_a_secret_is_kept(text, redacted):
    assert redact_text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "workspace not found",
        "max_tokens must be positive",
        "a valid token is required",
        "see https://example.org/a?b=c",
        "the bearer of bad news",
        "key: value, path=/tmp/x, id: 7",
        "line 1\nline 2 [x] {y}",
    ],
)
def test_ordinary_text_is_left_alone(text):
    assert redact_text(text) == text


def test_a_secret_that_the_caller_knows_goes_wherever_it_is():
    known = ["plain words", "plain", ""]
    assert redact_text("it says plain words, plainly", secrets=known) == (
        f"it says {REDACTED}, {REDACTED}ly"
    )
    assert redact({"note": ["plain words"]}, secrets=known) == {"note": [REDACTED]}


@pytest.mark.parametrize(
    "piece", ["a", "A=", '"', "\\", " ", "eyJ-", "sk-", "://", "-----BEGIN ", "cookie", "token="]
)
def test_no_text_takes_time_out_of_proportion_to_its_size(piece):
    text = piece * (256 * 1024 // len(piece))
    began = time.perf_counter()
    redact_text(text)
    assert time.perf_counter() - began < 5, "anything quadratic would need minutes"


# ── Values ─────────────────────────────────────────────────────────────────────────────────────


def test_under_a_secret_s_name_all_text_goes_and_numbers_stay():
    token = {"access_token": "x", "expires_in": 3600, "client": {"auth_url": "u", "ok": True}}
    assert redact({"oauth_token": token, "max_tokens": 4096, "api_key": ""}) == {
        "oauth_token": {
            "access_token": REDACTED,
            "expires_in": 3600,
            "client": {"auth_url": REDACTED, "ok": True},
        },
        "max_tokens": 4096,
        "api_key": "",
    }


def test_the_environment_of_a_client_keeps_its_harmless_part():
    env = ["PATH=/bin:/usr/bin", "GITHUB_TOKEN=one two\nthree", "EMPTY=", "DB=postgres://u:p@h/d"]
    assert redact(env) == [
        "PATH=/bin:/usr/bin",
        f"GITHUB_TOKEN={REDACTED}",
        "EMPTY=",
        f"DB=postgres://{REDACTED}@h/d",
    ]


def test_headers_and_options_of_a_command_are_known_by_the_item_before():
    assert redact([(b"authorization", b"Bearer x"), (b"host", b"h")]) == [
        (b"authorization", REDACTED.encode()),
        (b"host", b"h"),
    ]
    assert redact(["npx", "--api-key", "x", "--port", "1"]) == [
        *("npx", "--api-key", REDACTED, "--port", "1")
    ]
    assert redact(["read_secret", "edit"]) == ["read_secret", "edit"]


def test_what_is_given_is_not_changed():
    value = {"env": ["A_TOKEN=x"], "api_key": "y"}
    redact(value)
    assert value == {"env": ["A_TOKEN=x"], "api_key": "y"}


def test_a_configuration_without_its_secrets_can_still_be_read_as_one():
    config = Config(
        providers={
            "p": ProviderConfig(
                api_key=HIDDEN,
                base_url=f"https://me:{HIDDEN}@host",
                extra_headers={"Authorization": f"Bearer {HIDDEN}", "X-Title": "mine"},
                extra_body={"nested": [{"secret": HIDDEN}]},
                oauth=OAuthToken(access_token=HIDDEN, refresh_token=HIDDEN, expires_at=7),
            )
        },
        mcp={
            "m": McpServerConfig(
                env={"HOME": "/h", "API_TOKEN": HIDDEN},
                args=("--token", HIDDEN, f"--key=sk-{HIDDEN}{HIDDEN}"),
                oauth_client_secret=HIDDEN,
                headers={"x-api-key": HIDDEN},
            )
        },
        env={"DB_PASSWORD": HIDDEN},
    )
    redacted = redact(unstructure(config))
    assert HIDDEN not in repr(redacted)
    again = structure(redacted, Config)
    assert again.providers["p"].oauth.expires_at == 7
    assert again.providers["p"].extra_headers["X-Title"] == "mine"
    assert again.mcp["m"].env["HOME"] == "/h"


plain = st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.binary(max_size=5)


def holding_secret():
    """Values in which the secret is under a name that tells, somewhere."""
    named = st.builds(lambda name: {name: HIDDEN}, st.sampled_from(SECRET_NAMES))
    assigned = st.builds(lambda name: [f"{name}={HIDDEN}"], st.sampled_from(["A_KEY", "token"]))
    deep = st.builds(lambda name: {name: [{"x": (HIDDEN, 1)}]}, st.sampled_from(SECRET_NAMES))
    return st.recursive(
        named | assigned | deep,
        lambda inner: (
            st.builds(lambda item, other: [other, item], inner, plain)
            | st.builds(lambda item, other: {"value": item, "other": other}, inner, plain)
            | st.tuples(inner, inner, inner)
        ),
        max_leaves=6,
    )


@given(holding_secret())
def test_a_secret_under_its_name_does_not_survive_in_any_corner(value):
    redacted = redact(value)
    assert HIDDEN in repr(value)
    assert HIDDEN not in repr(redacted)
    assert redact(redacted) == redacted


names = st.text(max_size=5) | st.sampled_from([*SECRET_NAMES, *HARMLESS_NAMES])


@given(
    st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_value_can_be_redacted_and_keeps_its_shape(value):
    redacted = redact(value)
    assert type(redacted) is type(value)
    if isinstance(value, dict | list):
        assert len(redacted) == len(value)
