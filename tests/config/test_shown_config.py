"""What clients get to see."""

import json

from crush_trio.config import shown_config
from crush_trio.config.context_files import CONTEXT_NAMES
from crush_trio.wire.codec import encode
from crush_trio.wire.config import ListingLimits
from tests.config.homes import CATALOGUE, SECRET, custom

TOKEN = {"access_token": SECRET, "refresh_token": SECRET, "client": {"client_secret": SECRET}}

EVERYTHING_SECRET = {
    "providers": {
        "x": custom(
            api_key=SECRET,
            oauth=TOKEN,
            base_url=f"https://user:{SECRET}@host/v1?key={SECRET}",
            extra_headers={"authorization": SECRET},
            extra_body={"k": SECRET},
            provider_options={"k": SECRET},
            aws_auth_refresh=f"login {SECRET}",
            system_prompt_prefix=SECRET,
        )
    },
    "mcp": {
        "m": {
            "type": "http",
            "command": "server",
            "args": ["--token", SECRET],
            "env": {"TOKEN": SECRET},
            "url": f"https://host/mcp?token={SECRET}",
            "headers": {"x": SECRET},
            "oauth": {"k": SECRET},
            "oauth_client_id": SECRET,
            "oauth_client_secret": SECRET,
            "oauth_token": TOKEN,
            "disabled_tools": ["t"],
        }
    },
    "lsp": {
        "l": {
            "command": "lsp",
            "args": [SECRET],
            "env": {"LICENCE": SECRET},
            "init_options": {"licence": SECRET},
            "options": {"licence": SECRET},
            "filetypes": ["py"],
        }
    },
    "hooks": {"PreToolUse": [{"command": f"check --token {SECRET}-and-more", "name": "check"}]},
    "env": {"TOKEN": SECRET},
}


async def test_no_secret_is_shown_wherever_it_stands(home):
    home.write(home.user_file, EVERYTHING_SECRET)
    home.environment["OPENAI_API_KEY"] = SECRET
    shown = encode(shown_config(await home.load(catalogue=CATALOGUE))).decode()
    assert SECRET not in shown
    tree = json.loads(shown)
    assert tree["providers"]["x"]["base_url"] == "https://host/v1"
    assert tree["mcp"]["m"] == {
        "type": "http",
        "command": "server",
        "url": "https://host/mcp",
        "disabled_tools": ["t"],
    }
    assert tree["lsp"]["l"] == {"command": "lsp", "filetypes": ["py"]}
    assert "env" not in tree
    assert "api_key" not in tree["providers"]["openai"]


async def test_what_clients_cannot_do_without_is_there(home):
    tree = json.loads(encode(shown_config(await home.load())))
    listing = {"max_depth": 0, "max_items": 1000}
    options = tree["options"]
    assert options.pop("context_paths") == list(CONTEXT_NAMES)
    own = home.user_file.parent
    assert options.pop("global_context_paths") == [str(own / "CRUSH.md"), str(own / "AGENTS.md")]
    assert options.pop("skills_paths")[0] == str(own / "skills")
    assert options == {
        "tui": {"completions": listing},
        "attribution": {"trailer_style": "assisted-by", "generated_with": True},
        "data_directory": str(home.project / ".crush"),
        "disable_metrics": True,
        "disable_provider_auto_update": True,
        "initialize_as": "AGENTS.md",
    }
    assert not {"mcp", "lsp"} & tree.keys()
    assert tree["tools"] == {"ls": listing}
    assert tree["models"]["large"] == {"model": "demo", "provider": "demo", "max_tokens": 4096}
    assert tree["providers"]["demo"]["models"][0]["id"] == "demo"


async def test_what_somebody_configured_is_shown(home):
    home.write(
        home.user_file,
        {
            "$schema": "s",
            "providers": {"mine": custom()},
            "models": {"large": {"provider": "mine", "model": "m2"}},
            "recent_models": {"large": [{"provider": "mine", "model": "m1"}]},
            "options": {
                "initialize_as": "CRUSH.md",
                "tui": {"compact_mode": True},
                "disable_default_providers": True,
            },
            "permissions": {"allowed_tools": ["view"]},
            "tools": {"ls": {"max_depth": 2}},
        },
    )
    loaded = await home.load()
    shown = shown_config(loaded)
    assert shown.schema == "s"
    assert shown.options.initialize_as == "CRUSH.md"
    assert shown.options.tui.compact_mode is True
    assert shown.options.disable_default_providers is True
    assert shown.tools.ls == ListingLimits(max_depth=2, max_items=1000)
    assert shown.models["large"].model == "m2"
    for name in ("recent_models", "permissions"):
        assert getattr(shown, name) == getattr(loaded.config, name) != {}
    assert shown.providers["mine"].models == loaded.config.providers["mine"].models
