"""The tools `crush_info` and `crush_logs`."""

import logging

import pytest
from attrs import evolve

from crush_trio.config.secrets.known import config_secrets, environment_secrets
from crush_trio.tools.info import (
    CrushInfoTool,
    CrushLogsTool,
    InfoReport,
    format_report,
)
from crush_trio.tools.recent_logs import RecentLogs
from crush_trio.wire.config import (
    CatalogModel,
    Config,
    HookConfig,
    LspServerConfig,
    McpServerConfig,
    McpTransport,
    OAuthToken,
    Options,
    PermissionsConfig,
    ProviderConfig,
    SelectedModel,
)
from crush_trio.wire.integrations import (
    LspClientInfo,
    LspState,
    McpClientInfo,
    McpState,
    SkillLoad,
    SkillState,
)
from tests.tools.search_bench import search_bench

CONFIG = Config(
    models={
        "small": SelectedModel(provider="p", model="s"),
        "large": SelectedModel(provider="p", model="l", think=True),
    },
    providers={
        "z": ProviderConfig(
            type="openai", base_url="https://user:hunter2@z.example/v1", disable=True
        ),
        "a": ProviderConfig(
            type="anthropic",
            api_key="very-secret-key",
            extra_headers={"X-Whatever": "header-secret"},
            models=(CatalogModel(id="m"),),
        ),
    },
    mcp={
        "tools": McpServerConfig(
            command="serve", args=("--token", "arg-secret"), env={"K": "env-secret"}
        ),
        "far": McpServerConfig(
            type=McpTransport.HTTP,
            url="https://far.example/mcp?token=query-secret",
            oauth_token=OAuthToken(access_token="oauth-secret", expires_in=0, expires_at=0),
        ),
    },
    lsp={"py": LspServerConfig(command="pyls")},
    options=Options(disabled_tools=("b", "a"), debug=True),
    permissions=PermissionsConfig(allowed_tools=("view", "bash:execute")),
    hooks={"PreToolUse": (HookConfig(command="check --password=hook-secret", matcher="bash"),)},
    env={"B": "2-secret", "A_TOKEN": "token-secret"},
)

REPORT = InfoReport(
    version="1.2",
    directory="/w",
    config=CONFIG,
    config_files=("/srv/x/crush.json",),
    tools=("view", "bash"),
    mcp=(McpClientInfo(name="tools", state=McpState.CONNECTED, tool_count=3),),
    lsp=(
        LspClientInfo(
            name="py", state=LspState.ERROR, error="failed with very-secret-key\nat start"
        ),
    ),
    skills=(SkillState(name="jq", path="/s/jq", state=SkillLoad.OK),),
)


@pytest.fixture
def text():
    return format_report(REPORT)


def section(text, name):
    [block] = [each for each in text.split("\n\n") if each.startswith(f"[{name}]")]
    return block.split("\n")[1:]


def test_report_says_how_everything_is_set_up(text):
    assert section(text, "workspace") == [
        "directory = /w",
        "version = 1.2",
        "config_file = /srv/x/crush.json",
    ]
    assert section(text, "models") == ["large = p/l, thinks", "small = p/s"]
    assert section(text, "providers") == [
        "a = anthropic, 1 models, has a key",
        "z = openai, https://[redacted]@z.example/v1, 0 models, has no key, disabled",
    ]
    assert section(text, "mcp") == [
        "far = http, https://far.example/mcp?token=[redacted]",
        "tools = stdio, serve",
        "tools is connected, 3 tools",
    ]
    assert section(text, "lsp") == ["py = pyls", "py is error, failed with [redacted] at start"]
    assert section(text, "skills") == ["jq = /s/jq, ok"]
    assert section(text, "permissions") == ["skip = no", "allowed_tools = bash:execute, view"]
    assert section(text, "tools") == ["available = bash, view", "disabled = a, b"]
    assert section(text, "options") == ["debug = true"]
    assert section(text, "env") == ["A_TOKEN, B"]


def test_no_secret_is_in_the_report(text):
    assert "secret" not in text
    assert "hunter2" not in text


def test_notices_are_told_and_hold_none_of_the_secrets_that_the_caller_knows():
    report = evolve(REPORT, notices=("/x: key: bad\nthing",), secrets=frozenset({"bad"}))
    assert section(format_report(report), "notices") == ["/x: key: [redacted] thing"]


def test_secret_variables_are_those_with_telling_names():
    environment = {"A_TOKEN": "long-enough", "B_TOKEN": "short", "PATH": "/usr/local/bin"}
    assert environment_secrets(environment) == {"long-enough"}


def test_report_of_an_empty_configuration_is_short():
    empty = format_report(InfoReport(version="1", directory="/w", config=Config()))
    assert [line for line in empty.split("\n") if line.startswith("[")] == [
        "[workspace]",
        "[permissions]",
        "[sandbox]",
        "[tools]",
    ]


def test_secrets_of_a_configuration_are_those_under_telling_names():
    secrets = config_secrets(CONFIG)
    assert {"very-secret-key", "oauth-secret", "token-secret"} <= secrets
    assert "/w" not in secrets
    assert config_secrets(Config(providers={"p": ProviderConfig(api_key="x")})) == frozenset()


async def test_tool_reports_what_holds_now(tmp_path):
    bench = search_bench(tmp_path)
    versions = iter("12")
    tool = CrushInfoTool(lambda: InfoReport(version=next(versions), directory="/", config=Config()))
    assert "version = 1" in (await bench.run(tool, "")).content
    assert "version = 2" in (await bench.run(tool, {})).content
    assert bench.asked.wanted == []


async def test_logs_are_shown_within_limits(tmp_path):
    bench = search_bench(tmp_path)
    logs = RecentLogs()
    tool = CrushLogsTool(logs, "w1", secrets=lambda: {"hush-hush"})
    assert (await bench.run(tool, "")).content == "Nothing has been logged."
    for number in range(200):
        fields = {"msg": f"hush-hush {number}", "workspace_id": f"w{number % 2}"}
        logs.handle(logging.makeLogRecord(fields))
    lines = (await bench.run(tool)).content.split("\n")
    assert len(lines) == 50
    assert "199" in lines[-1]
    assert "hush-hush" not in "".join(lines)
    assert len((await bench.run(tool, lines=3)).content.split("\n")) == 3
    assert len((await bench.run(tool, lines=1000)).content.split("\n")) == 100
