"""What the files of an untrusted project want, in words."""

import json

import pytest

from crush_trio.config import ConfigWarningKind
from crush_trio.config.trust.wishes import TEXT_LIMIT, WishKind
from tests.config.homes import SECRET, custom, texts


async def wishes(home, content=None, directory=None):
    """Return what the project wants after *content* was written into its file."""
    if content is not None:
        home.write(home.project_file, content)
    return (await home.load(directory)).wishes


@pytest.mark.parametrize(
    ("content", "kind", "key", "text"),
    [
        (
            {"models": {"large": {"provider": "acme", "model": "m1"}}},
            "model",
            "models.large",
            "choose the large model: acme/m1",
        ),
        (
            {"providers": {"acme": custom()}},
            "provider",
            "providers.acme",
            "send conversations to the provider acme at http://localhost:9",
        ),
        (
            {"providers": {"acme": {"disable": True}}},
            "provider",
            "providers.acme",
            "switch off the provider acme",
        ),
        (
            {"options": {"disable_default_providers": True}},
            "provider",
            "options.disable_default_providers",
            "choose which providers can be used",
        ),
        (
            {"env": {"PATH": "/evil", "LD_PRELOAD": "x"}},
            "environment",
            "env",
            "set environment variables: PATH, LD_PRELOAD",
        ),
        (
            {"hooks": {"PreToolUse": [{"command": "./check --all"}]}},
            "hook",
            "hooks.PreToolUse[0]",
            "run a hook: ./check --all",
        ),
        ({"hooks": {"PreToolUse": []}}, "hook", "hooks.PreToolUse[0]", "remove hooks"),
        (
            {"mcp": {"files": {"command": "npx", "args": ["server", "-y"]}}},
            "mcp",
            "mcp.files",
            "run the MCP server files: npx server -y",
        ),
        (
            {"mcp": {"files": {"type": "http", "url": "https://x.example/mcp"}}},
            "mcp",
            "mcp.files",
            "connect to the MCP server files at https://x.example/mcp",
        ),
        (
            {"lsp": {"py": {"command": "./server"}}},
            "lsp",
            "lsp.py",
            "run the language server py: ./server",
        ),
        (
            {"permissions": {"allowed_tools": ["bash", "edit:write"]}},
            "tools",
            "permissions.allowed_tools",
            "let the agent use tools without asking: bash, edit:write",
        ),
        (
            {"options": {"context_paths": ["fine.md", "../other.md"]}},
            "path",
            "options.context_paths[1]",
            "read ../other.md (context_paths)",
        ),
        (
            {"options": {"skills_paths": ["$HOME/skills"]}},
            "path",
            "options.skills_paths[0]",
            "read $HOME/skills (skills_paths)",
        ),
        (
            {"options": {"data_directory": "~/elsewhere"}},
            "path",
            "options.data_directory",
            "keep its data in ~/elsewhere, from the next time it is opened",
        ),
    ],
)
async def test_each_wish_is_said_in_words_and_is_gone_once_the_project_is_trusted(
    home, content, kind, key, text
):
    found = await wishes(home, content)
    [wish] = found.items
    assert (wish.kind, wish.file, wish.key, wish.text) == (kind, home.project_file, key, text)
    assert (found.directory, found.declined) == (home.project, False)
    home.trust()
    assert await wishes(home) is None


async def test_commands_and_variables_in_values_are_wishes(home):
    provider = custom(api_key="${KEY:-$(cat ~/key)}", extra_headers={"x": "$OTHER"})
    found = await wishes(home, {"providers": {"acme": provider}, "env": {"A": "$(./a)"}})
    texts = [(wish.kind.value, wish.key, wish.text) for wish in found.items]
    assert ("command", "env.A", "run a command: ./a") in texts
    assert ("command", "providers.acme", "run a command: cat ~/key") in texts
    assert ("provider", "providers.acme", "use your variables for acme: KEY, OTHER") in texts
    assert found.summary.startswith("run commands")


@pytest.mark.parametrize("theirs", [[], None, ["fetch"]])
async def test_a_project_does_not_enable_what_the_user_has_disabled(home, theirs):
    home.write(home.user_file, {"options": {"disabled_tools": ["bash", "fetch"]}})
    [wish] = (await wishes(home, {"options": {"disabled_tools": theirs}})).items
    again = "bash" if theirs else "bash, fetch"
    assert (wish.kind, wish.key) == ("tools", "options.disabled_tools")
    assert wish.text == f"use what you have disabled (disabled_tools): {again}"
    assert (await home.load()).config.options.disabled_tools == ("bash", "fetch")
    home.trust()
    assert (await home.load()).config.options.disabled_tools == tuple(theirs or ())


async def test_a_project_may_disable_more(home):
    home.write(home.user_file, {"options": {"disabled_tools": ["bash"]}})
    assert await wishes(home, {"options": {"disabled_tools": ["bash", "fetch"]}}) is None
    assert (await home.load()).config.options.disabled_tools == ("bash", "fetch")


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"options": {"debug": True, "context_paths": ["docs/a.md"], "disabled_tools": ["bash"]}},
        {"models": {}, "providers": None, "env": {}, "mcp": {}, "hooks": None},
        {"recent_models": {"large": [{"provider": "acme", "model": "m1"}]}},
    ],
)
async def test_what_is_harmless_is_no_wish(home, content):
    assert await wishes(home, content) is None


async def test_files_of_the_user_are_no_wishes(home):
    for file in (home.user_file, home.data_file, home.own_file):
        home.write(file, {"env": {"A": "1"}, "mcp": {"m": {"command": "x"}}})
    assert await wishes(home) is None


async def test_a_file_in_the_data_directory_counts_as_the_projects(home):
    home.write(home.workspace_file, {"models": {"large": {"provider": "p", "model": "m"}}})
    found = await wishes(home)
    assert found.directory == home.project
    assert [wish.file for wish in found.items] == [home.workspace_file]


async def test_the_directory_to_trust_is_the_highest_one_with_a_wish(home):
    sub = home.project / "a" / "b"
    sub.mkdir(parents=True)
    home.write(home.project / "a" / "crush.json", {"env": {"A": "1"}})
    home.write(sub / ".crush.json", {"env": {"B": "1"}})
    assert (await wishes(home, directory=sub)).directory == home.project / "a"
    home.trust(home.project / "a")
    assert await wishes(home, directory=sub) is None
    assert (await wishes(home, {"env": {"C": "1"}}, directory=sub)).directory == home.project


async def test_the_digest_stands_for_the_content_and_not_for_its_layout(home):
    content = {"env": {"A": "1", "B": "2"}, "options": {"debug": True}}
    first = await wishes(home, content)
    again = await wishes(home, json.dumps(dict(reversed(content.items())), indent=8))
    assert again.digest == first.digest
    for other in ({**content, "env": {"A": "1", "B": "3"}}, {**content, "options": {}}):
        assert (await wishes(home, other)).digest != first.digest


async def test_no_kind_of_wish_hides_another(home):
    hooks = [{"command": f"hook{number}"} for number in range(500)]
    found = await wishes(
        home, {"hooks": {"PreToolUse": hooks}, "env": {"A": "1"}, "mcp": {"m": {"command": "x"}}}
    )
    assert list(found.lines(2)) == [
        *("set environment variables: A", "run a hook: hook0", "run a hook: hook1"),
        *("run hooks: 498 more", "run the MCP server m: x"),
    ]
    assert found.summary == "set environment variables, run hooks, use MCP servers"
    assert found.kinds == (WishKind.ENVIRONMENT, WishKind.HOOK, WishKind.MCP)


async def test_the_words_are_short_printable_and_hold_no_secret(home):
    found = await wishes(
        home,
        {
            "env": {"TOKEN": SECRET, "\x1b[2J": "x"},
            "providers": {
                "acme": custom(
                    api_key=SECRET,
                    extra_headers={"x": SECRET},
                    base_url=f"http://me:{SECRET}@host/\u202eevil",
                )
            },
            "mcp": {
                "m\n\x1b" * 500: {
                    "command": "x" * 5000,
                    "env": {"K": SECRET},
                    "headers": {"h": SECRET},
                }
            },
        },
    )
    said = [text for wish in found.items for text in (wish.text, wish.key)]
    assert len(said) == 6
    assert all(text.isprintable() and len(text.encode()) <= TEXT_LIMIT for text in said)
    assert SECRET not in str(said)
    assert "me:" not in str(said)


async def test_a_record_of_denials_that_is_broken_is_ignored_and_told_of(home):
    declined = home.write(home.places().declined_file, "{")
    home.write(home.project_file, {"env": {"A": "1"}})
    loaded = await home.load()
    assert loaded.wishes.declined is False
    [warning] = texts(loaded, ConfigWarningKind.NOT_USED)
    assert warning.startswith(f"{declined}: ignored: it is not valid")
