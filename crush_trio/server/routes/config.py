"""Routes about configuration and the project (wire.md §3.8).

A change is written to the file that its scope names, read back, and then told to every client of the
workspace. A change that would make the configuration invalid is refused, and nothing is written.
"""

from typing import Final

import trio

from crush_trio.config.context_files import DEFAULT_INITIALIZE_AS
from crush_trio.config.errors import ConfigInvalid, NotConfigured
from crush_trio.errors import NotBuilt
from crush_trio.server.audit_notes import (
    COMPACT_SET,
    KEY_REMOVED,
    KEY_SET,
    MODEL_SET,
    PROJECT_MARKED,
    PROVIDER_KEY_SET,
)
from crush_trio.server.routing import WORKSPACE, Call, Route, under
from crush_trio.wire.answers import NeedsInit, PromptText
from crush_trio.wire.config import TokenImport
from crush_trio.wire.requests import (
    ConfigCompactRequest,
    ConfigModelRequest,
    ConfigRemoveRequest,
    ConfigSetRequest,
    ProviderKeyRequest,
    RefreshOAuthRequest,
)

WRITING: Final = (*("config_invalid", "workspace_closing", "config_locked", "config_not_written"),)
"""The errors of a route that changes a configuration file."""

_NO_REFRESH: Final = (
    "the token of {} is the same as before, and this server renews none; renew it with the program that "
    "made it, or configure an api_key"
)
_NO_COPILOT: Final = (
    "this server reads no tokens of other programs and does not reach GitHub Copilot; choose another "
    "provider and set its key"
)

_INIT_PROMPT: Final = """\
Write `{name}` for this project: the file that tells coding agents how to work here.

Look first: the manifest and build files, the CI configuration, the readme, the layout, a few typical \
source and test files, and any instructions for agents that exist already. Then write, in at most 60 lines:

- how to build, lint and test, with the command for a single test;
- how the code is laid out, and what belongs where;
- the conventions that are visible in the code: formatting, imports, types, names, errors, tests;
- what surprised you, and what a newcomer would get wrong.

Write only what you have seen. If `{name}` exists, improve it and keep what is right. Do not copy \
whole files into it, and leave out advice that holds for every project."""


def init_prompt(name: str) -> str:
    """Return the prompt that has the agent write the file *name*, which introduces agents to the project."""
    return _INIT_PROMPT.format(name=name)


# ── Configuration ───────────────────────────────────────────────────────────────────────────────


async def set_value(call: Call) -> None:
    """Set the value at a key."""
    body: ConfigSetRequest = call.body
    await call.workspace.config.set(body.scope, body.key, body.value)


async def remove_key(call: Call) -> None:
    """Remove a key."""
    body: ConfigRemoveRequest = call.body
    await call.workspace.config.remove(body.scope, body.key)


async def select_model(call: Call) -> None:
    """Select a model; refuse one that cannot be used, instead of answering with another one."""
    body: ConfigModelRequest = call.body
    try:
        call.workspace.config.current.check_selectable(body.model)
    except ConfigInvalid:  # its provider may have been written into a file just now
        (await call.workspace.config.reload()).check_selectable(body.model)
    await call.workspace.config.set_model(body.scope, body.model_type, body.model)


async def set_compact(call: Call) -> None:
    """Switch the compact view."""
    body: ConfigCompactRequest = call.body
    await call.workspace.config.set_compact_mode(body.scope, body.enabled)


async def set_provider_key(call: Call) -> None:
    """Store a provider's key."""
    body: ProviderKeyRequest = call.body
    config = call.workspace.config
    await config.set_provider_key(body.scope, body.provider_id, body.kind, body.api_key)


async def refresh_oauth(call: Call) -> None:
    """Read the configuration again: a token that another program renewed is then the one in use.

    Raises `NotBuilt` if no other token has come of it: this program renews none.
    """
    config, provider_id = call.workspace.config, call.body.provider_id
    provider = config.current.config.providers.get(provider_id)
    if provider is None:
        await trio.lowlevel.checkpoint()
        raise NotConfigured(f"provider {provider_id}")
    newer = (await config.reload()).config.providers.get(provider_id)
    if newer is None or newer.oauth == provider.oauth:
        raise NotBuilt(_NO_REFRESH.format(provider_id))


def import_copilot(_call: Call) -> TokenImport:
    """Raise `NotBuilt`: the files of other programs are not read."""
    raise NotBuilt(_NO_COPILOT)


# ── The project ─────────────────────────────────────────────────────────────────────────────────


async def needs_init(call: Call) -> NeedsInit:
    """Return whether the project was never set up."""
    return NeedsInit(needs_init=await call.workspace.config.needs_init())


async def mark_initialized(call: Call) -> None:
    """Note that the project is set up, and tell the clients."""
    workspace = call.workspace
    await workspace.config.mark_initialized()
    workspace.config_changed()


def project_prompt(call: Call) -> PromptText:
    """Return the prompt that sets the project up."""
    options = call.workspace.config.current.config.options
    return PromptText(prompt=init_prompt(options.initialize_as or DEFAULT_INITIALIZE_AS))


ROUTES: Final = (
    *under(
        f"{WORKSPACE}/config",
        Route(
            "POST",
            "/set",
            "Set the value at a key.",
            set_value,
            name="set_config_value",
            body=ConfigSetRequest,
            audit=KEY_SET,
        ),
        Route(
            "POST",
            "/remove",
            "Remove a key.",
            remove_key,
            name="remove_config_value",
            body=ConfigRemoveRequest,
            audit=KEY_REMOVED,
        ),
        Route(
            "POST",
            "/model",
            "Select a model; one that cannot be used is refused, and the message says what it lacks.",
            select_model,
            name="set_model",
            body=ConfigModelRequest,
            audit=MODEL_SET,
        ),
        Route(
            "POST",
            "/compact",
            "Switch the compact view.",
            set_compact,
            name="set_compact_mode",
            body=ConfigCompactRequest,
            audit=COMPACT_SET,
        ),
        Route(
            "POST",
            "/provider-key",
            "Store a provider's key.",
            set_provider_key,
            name="set_provider_key",
            body=ProviderKeyRequest,
            errors=("provider_key_invalid",),
            audit=PROVIDER_KEY_SET,
        ),
        Route(
            "POST",
            "/refresh-oauth",
            "Use a token that another program renewed.",
            refresh_oauth,
            name="refresh_oauth_token",
            body=RefreshOAuthRequest,
            errors=("not_configured", "not_built"),
            state="reads the token again; says so if it is still the old one, and renews none by itself",
        ),
        Route(
            "POST",
            "/import-copilot",
            "Use another program's token.",
            import_copilot,
            name="import_copilot_token",
            answer=TokenImport,
            errors=("not_built",),
            state="never imports one: says that other programs' files are not read",
        ),
        group="Configuration",
        errors=WRITING,
    ),
    *under(
        f"{WORKSPACE}/project",
        Route(
            "GET",
            "/needs-init",
            "Show whether the project was never set up.",
            needs_init,
            name="needs_project_init",
            answer=NeedsInit,
        ),
        Route(
            "POST",
            "/init",
            "Note that the project is set up.",
            mark_initialized,
            name="mark_project_initialized",
            audit=PROJECT_MARKED,
        ),
        Route(
            "GET",
            "/init-prompt",
            "Show the prompt that sets the project up.",
            project_prompt,
            name="get_project_init_prompt",
            answer=PromptText,
        ),
        group="Project",
    ),
)
