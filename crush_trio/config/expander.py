"""`Expander`: fills in the templates of one workspace, depending on whether their file is trusted.

A command is run and a variable is read only if it is in a file of the user, or of a project whose
directory the user trusts. Otherwise a project could send any of the user's keys to an address of
its choice. An untrusted project may use variables in paths only, because those paths have to stay
inside the project.

The table `TEMPLATES` lists the values that are templates (I4). All others are literal.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import trio
from attrs import evolve, field, frozen

from crush_trio.config.errors import ConfigWarning, ConfigWarningKind, ExpansionFailed
from crush_trio.config.redaction import is_secret_name
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.config.sources import Layers, Source, Tree
from crush_trio.config.template import (
    COMMAND_LIMIT,
    Command,
    CommandFailed,
    RunCommand,
    Template,
    TemplateError,
    parse,
    refuse_command,
)
from crush_trio.wire.config import Config, LspServerConfig, McpServerConfig, ProviderConfig
from crush_trio.wire.converters import key_step
from crush_trio.wire.fields import Json

E = TypeVar("E", ProviderConfig, McpServerConfig, LspServerConfig)

Keys: TypeAlias = tuple[str | int, ...]
"""The path of a value: keys of objects and indexes of lists."""

TEMPLATES: Final[Mapping[type, tuple[str, ...]]] = {
    ProviderConfig: ("api_key", "base_url", "extra_headers"),
    McpServerConfig: (
        *("command", "args", "env", "url", "headers"),
        *("oauth_client_id", "oauth_client_secret"),
    ),
    LspServerConfig: ("args", "env"),
}
"""The fields that hold templates. `extra_body` does not: it is passed to the provider unchanged."""

PATHS: Final = ("context_paths", "global_context_paths", "skills_paths")
"""The options that hold paths; one that begins with `$` is a template."""

_HEADERS: Final = {"extra_headers", "headers"}


@frozen(kw_only=True)
class Expander:
    """Fills in the templates of one snapshot. It caches no value."""

    layers: Layers[Source]
    tree: Tree = field(repr=False)
    """The merged layers."""
    directory: Path
    """Where commands are run."""
    """The file where the user can list trusted directories."""
    environment: Mapping[str, str] = field(repr=False)
    """The variables of the templates."""
    run: RunCommand = field(default=refuse_command, repr=False)
    secrets: KnownSecrets = field(factory=KnownSecrets, repr=False)
    """Collects the values of templates under a secret's name."""

    # ASYNC910: only commands are awaited. A run fills in half a dozen templates; with a checkpoint for
    # each, these were a fifth of all its scheduler steps.
    async def expand(self, text: str, *keys: str | int) -> str:  # noqa: ASYNC910
        """Return the value of the template at *keys*, or raise `ExpansionFailed`."""
        source = self._source(text, keys)
        try:
            template = parse(text)
            self._check_trust(template, keys, source)
            outputs = {}
            for command in template.commands(self.environment):
                outputs[command] = await self._output(command)
            value = template.fill(self.environment, outputs)
            if any(is_secret_name(str(key)) for key in keys):
                self.secrets.learn((value,))
            return value  # noqa: ASYNC910
        except TemplateError as error:
            raise ExpansionFailed.at(_file(source), key_text(keys), str(error)) from None

    async def expand_fields(self, value: E, *keys: str) -> E:  # noqa: ASYNC910
        """Return *value*, which is at *keys*, with all its templates filled in."""
        filled = {
            name: await self._expand_all(getattr(value, name), (*keys, name))
            for name in TEMPLATES[type(value)]
        }
        return evolve(value, **filled)  # noqa: ASYNC910

    async def _expand_all(self, value: Json, keys: Keys) -> Json:  # noqa: ASYNC910
        if isinstance(value, str):
            return await self.expand(value, *keys)
        if isinstance(value, Mapping):
            filled = {name: await self.expand(text, *keys, name) for name, text in value.items()}
            return {  # noqa: ASYNC910
                name: text for name, text in filled.items() if text or keys[-1] not in _HEADERS
            }
        texts = [await self.expand(text, *keys, index) for index, text in enumerate(value)]
        return tuple(texts)  # noqa: ASYNC910

    def may_have_value(self, text: str, *keys: str) -> bool:
        """Whether the template at *keys* may have a value, without running commands.

        True for a command, and also for an invalid or untrusted template: using it raises an error
        that says so.
        """
        try:
            template = parse(text)
            self._check_trust(template, keys, self._source(text, keys))
        except TemplateError:
            return True
        if any(True for _ in template.commands(self.environment)):
            return True
        try:
            return bool(template.fill(self.environment, {}))
        except TemplateError:
            return False

    def template_warning(self, text: str, keys: Keys) -> ConfigWarning | None:
        """Return a warning if the template at *keys* is invalid or not trusted."""
        source = self._source(text, keys)
        try:
            self._check_trust(parse(text), keys, source)
        except _NotTrusted as error:
            kind, reason = ConfigWarningKind.NOT_TRUSTED, str(error)
        except TemplateError as error:
            kind, reason = ConfigWarningKind.NOT_EXPANDED, str(error)
        else:
            return None
        file = None if source is None else source.path
        return ConfigWarning(kind=kind, text=reason, file=file, key=key_text(keys))

    def _source(self, text: str, keys: Keys) -> Source | None:
        """Return the file that a template comes from; None if it is a built-in one."""
        value: Json = self.tree
        for key in keys:
            if isinstance(key, str):
                value = value.get(key) if isinstance(value, Mapping) else None
            else:
                value = value[key] if isinstance(value, list) and key < len(value) else None
        return self.layers.origin(*keys) if value == text else None

    def _check_trust(self, template: Template, keys: Keys, source: Source | None) -> None:
        """Raise `_NotTrusted` for a command or variable in an untrusted file."""
        if source is None or source.may_run:
            return
        advice = source.how_to_trust
        for piece in template.expansions():
            if isinstance(piece, Command):
                raise _NotTrusted(f"{piece}: not run, {advice}")
            if keys[0] != "options":
                raise _NotTrusted(f"{piece}: not read, {advice}")

    async def _output(self, command: str) -> str:
        with trio.move_on_after(COMMAND_LIMIT):
            try:
                return await self.run(command, self.environment, self.directory)
            except CommandFailed as error:
                raise TemplateError(f"$({command}): {error}") from None
        raise TemplateError(f"$({command}): expected an answer within {COMMAND_LIMIT:.0f} seconds")


class _NotTrusted(TemplateError):
    """A command or a variable in an untrusted file."""


def templates_of(config: Config) -> Iterator[tuple[Keys, str]]:
    """Yield the templates of *config* that are filled in on demand, with their keys."""
    for section in ("providers", "mcp", "lsp"):
        for name, entry in getattr(config, section).items():
            for each in TEMPLATES[type(entry)]:
                yield from _texts(getattr(entry, each), (section, name, each))
    for option in PATHS:
        paths = _texts(getattr(config.options, option), ("options", option))
        yield from ((keys, text) for keys, text in paths if text.startswith("$"))


def key_text(keys: Keys) -> str:
    """Return the keys of a value as text for errors: `mcp.files.args[0]`."""
    steps = (f"[{key}]" if isinstance(key, int) else key_step(key) for key in keys)
    return "".join(steps).removeprefix(".")


def _texts(value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:  # noqa: ANN401 - text, list or mapping of it
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, Mapping):
        yield from (((*keys, name), text) for name, text in value.items())
    else:
        yield from (((*keys, index), text) for index, text in enumerate(value))


def _file(source: Source | None) -> str:
    return "" if source is None else str(source.path)
