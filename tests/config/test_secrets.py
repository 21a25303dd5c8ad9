"""Known secrets: which values count, in which forms they are found, and what commands get."""

import base64
from urllib.parse import quote

import pytest

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.secrets.command_env import CommandEnv, has_password, is_secret_variable
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.wire.config import Config

KEY = "sk-Zx81+/Qm7 t0p~LwE9"
LONG = "ghp_" + "a1B2c3D4e5" * 4


def knowing(*values):
    secrets = KnownSecrets()
    secrets.learn(values)
    return secrets


@pytest.mark.parametrize(
    "form",
    [
        KEY,
        quote(KEY, safe=""),
        base64.b64encode(KEY.encode()).decode(),
        base64.b64encode(f"user:{KEY}".encode()).decode(),
        base64.urlsafe_b64encode(f"me:{KEY}, and more".encode()).decode(),
    ],
)
def test_a_secret_is_found_in_every_form(form):
    hidden = knowing(KEY).redact(f"before {form} after")
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert "[redacted]" in hidden
    assert form[8:-8] not in hidden


def test_a_secret_in_json_text_is_found():
    assert knowing('a"b\\c12345').redact('{"k": "a\\"b\\\\c12345"}') == '{"k": "[redacted]"}'


@pytest.mark.parametrize("at", range(1, len(LONG)))
def test_no_more_than_half_of_a_secret_is_left_where_a_text_was_cut(at):
    secrets = knowing(LONG)
    for part in (secrets.redact(f"x {LONG[:at]}"), secrets.redact(f"{LONG[at:]} x")):
        left = part.replace("[redacted]", "").removeprefix("x ").removesuffix(" x")
        assert len(left) < len(LONG) / 2


def test_several_secrets_and_repetitions_are_all_hidden():
    secrets = knowing(KEY, LONG, LONG[:20])
    text = secrets.redact(f"{LONG},{KEY};{LONG} {LONG[:20]}")
    assert text == "[redacted],[redacted];[redacted] [redacted]"
    assert secrets.redact_tree({"a": [KEY, 1, None], KEY: "x"}) == {
        "a": ["[redacted]", 1, None],
        KEY: "x",
    }


def test_a_tree_that_is_too_deep_to_be_searched_is_left_out():
    deep = "x"
    for _ in range(5000):
        deep = [deep]
    assert knowing(KEY).redact_tree(deep) == {}


@pytest.mark.parametrize(
    "value", ["short", "postgres", "lm-studio", "1234567890", "/home/me/keys/long.json", ""]
)
def test_what_is_short_or_plain_is_not_searched(value):
    assert knowing(value).redact(f"a {value} b") == f"a {value} b"


def test_the_scheme_of_a_header_is_no_part_of_the_secret():
    assert knowing(f"Bearer {LONG}").redact(f"Authorization: {LONG}") == "Authorization: [redacted]"


def test_the_lines_of_a_private_key_are_hidden_one_by_one():
    lines = ["-----BEGIN X-----", "a1" * 32, "b2" * 32, "-----END X-----"]
    shown = knowing("\n".join(lines)).redact(f"  1|{lines[1]}\n  2|{lines[2]}")
    assert shown == "  1|[redacted]\n  2|[redacted]"


# ── The environment of commands ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("OPENAI_API_KEY", True),
        ("github_token", True),
        ("MY_SECRET", True),
        ("PGPASSWORD", True),
        ("DB_PASSWORD_FILE", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("TOKEN", True),
        ("DB_PASS", True),
        ("SSHPASS", True),
        ("COMPASS", False),
        ("SSH_AUTH_SOCK", False),
        ("GIT_CONFIG_KEY_0", False),
        ("MY_PUBLIC_KEY", False),
        ("MAX_OUTPUT_TOKENS", False),
        ("KEYBOARD", False),
        ("PATH", False),
    ],
)
def test_variables_are_judged_by_their_names(name, secret):
    assert is_secret_variable(name) is secret


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("DATABASE_URL", "postgres://app:hunter2@db:5432/x", True),
        ("REDIS_URL", "redis://:p@ss@cache/0", True),
        ("https_proxy", "http://me:secret@proxy:3128", True),
        ("HOSTS", "amqp://one:5672 amqp://u:p@two", True),
        ("APP_DSN", "app:hunter2@tcp(db:3306)/x", True),
        ("PG_DSN", "host=db password=hunter2", True),
        ("AZURE_CONNECTION_STRING", "Server=db;Password=x;", True),
        ("ConnectionStrings__Default", "Server=db;User Id=u;Password=x;", True),
        ("BLOB_CONNECTION_STRING", "AccountName=a;AccountKey=abc==;EndpointSuffix=x", True),
        ("SERVER_PEM", "-----BEGIN RSA PRIVATE KEY-----\nabc", True),
        ("SERVER_CERT", "-----BEGIN CERTIFICATE-----\nabc", False),
        ("SENTRY_DSN", "https://0123@sentry.example/1", False),
        ("REGISTRY_URL", "http://npm:8080/@scope/x", False),
        ("DATABASE_URL", "postgres://app@db:5432/x", False),
        ("GIT_URL", "git@example.org:a/b.git", False),
        ("PG_DSN", "host=db password=", False),
        ("NOTE", "a:b@c", False),
    ],
)
def test_passwords_in_values_are_recognised(name, value, secret):
    assert has_password(name, value) is secret
    assert (name in CommandEnv().apply({name: value}, KnownSecrets())) is not secret
    assert name in CommandEnv(passed=(name,)).apply({name: value}, KnownSecrets())


def test_a_password_in_a_url_of_the_environment_is_known():
    known = KnownSecrets()
    known.learn_config(Config(), {"DATABASE_URL": "postgres://app:hunter%2F2hunter@db/x"})
    assert known.redact("it is hunter/2hunter or hunter%2F2hunter") == (
        "it is [redacted] or [redacted]"
    )
    known.learn_config(Config(), {"DATABASE_URL": "postgres://postgres:postgres@db/x"})
    assert known.redact("a postgres server") == "a postgres server"


def test_commands_get_neither_secret_names_nor_known_values():
    environment = {
        "PATH": "/bin",
        "A_TOKEN": "x",
        "URL": f"https://me:{LONG}@host/",
        "HOME": f"/home/{LONG}",
        "KEPT_KEY": "y",
        "PLAIN": "z",
        "NOISE": "n",
    }
    rules = CommandEnv(passed=("kept_*",), dropped=("noise",))
    assert rules.apply(environment, knowing(LONG)) == {
        "PATH": "/bin",
        "HOME": f"/home/{LONG}",
        "KEPT_KEY": "y",
        "PLAIN": "z",
    }


async def test_the_users_files_pass_variables_on_and_a_project_does_not(home):
    home.write(home.user_file, {"crush_trio": {"command_env": {"pass": ["MINE_*"]}}})
    home.write(home.project_file, {"crush_trio": {"command_env": {"pass": ["OTHER_TOKEN"]}}})
    home.environment.update({"MINE_TOKEN": "1", "OTHER_TOKEN": "2", "PLAIN": "3"})
    loaded = await home.load()
    given = loaded.command_environment()
    assert (given.get("MINE_TOKEN"), given.get("OTHER_TOKEN")) == ("1", None)
    assert given["PLAIN"] == "3"


async def test_an_entry_that_is_no_name_is_refused(home):
    home.write(home.user_file, {"crush_trio": {"command_env": {"drop": ["A-B"]}}})
    with pytest.raises(ConfigInvalid, match=r"crush_trio.command_env.drop: expected names of"):
        await home.load()


async def test_secrets_of_the_files_and_of_the_environment_are_known(home):
    key, header, variable = "sk-1234567890abcdef", "tok-abcdef1234567890", "ghp-0987654321fedcba"
    home.environment["GITHUB_TOKEN"] = variable
    mcp = {"x": {"type": "http", "url": "http://h", "headers": {"Authorization": "$(say)"}}}
    home.write(home.user_file, {"providers": {"openai": {"api_key": key}}, "mcp": mcp})

    async def run(*_):
        return f"Bearer {header}"

    loaded = await home.load(run_command=run)
    assert loaded.secrets.redact(f"{key} {variable}") == "[redacted] [redacted]"
    await loaded.resolve_mcp("x")
    assert loaded.secrets.redact(f"got {header}") == "got [redacted]"
