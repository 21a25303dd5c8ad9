"""`Draft`: the merged configuration files, read from the disk and checked; the first step of loading."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from attrs import define, evolve, field, frozen

from crush_trio.config.checks import (
    LIMITS_KEY,
    check_hooks,
    check_sandbox,
    complete_providers,
    file_limits,
    flat_hooks,
    hook_warnings,
)
from crush_trio.config.errors import (
    ConfigInvalid,
    ConfigWarning,
    ConfigWarningKind,
)
from crush_trio.config.expander import key_text
from crush_trio.config.files import (
    OWN_KEY,
    ConfigFile,
    NotifyConfig,
    RetentionConfig,
    SandboxConfig,
    check_types,
    command_env,
    merged_config,
    merged_sandbox,
    own_setting,
    read_tree,
    unknown_keys,
    without_malformed,
)
from crush_trio.config.known_providers import known_providers
from crush_trio.config.models import Known
from crush_trio.config.rules.rules import LoadedRule, load_rules
from crush_trio.config.secrets.command_env import CommandEnv
from crush_trio.config.sources import (
    DataDir,
    Layer,
    Layers,
    Places,
    Project,
    Source,
    SourceKind,
    Tree,
    Trusted,
    choose_data_dir,
    find_project,
    find_scripts,
    outside_data_dirs,
    real_path,
)
from crush_trio.config.trust.answers import TrustedOnce, with_answer
from crush_trio.config.trust.wishes import Wishes, find_wishes, remove_untrusted
from crush_trio.wire.config import CatalogProvider, Config

Overlay = Mapping[Path, Tree]
"""Content that replaces that of some files."""

_SCRIPT: Final = (
    "scripts are not run; write the same as JSON into crush.json beside it: what `provider` sets "
    "belongs under providers, `model` under models, `mcp` under mcp, `lsp` under lsp, `option` under "
    "options, `hook` under hooks, `permissions` under permissions.allowed_tools"
)
_FOREIGN_OWN: Final = "ignored: only the user's own files can set this key"
_FOREIGN_RULES: Final = "ignored: only your own files can have permission rules; add one with: crush-trio permissions add"
_OF_WORKSPACE: Final = {SourceKind.WORKSPACE, SourceKind.USER_WORKSPACE}
_LIMITS_ELSEWHERE: Final = "ignored: limits count for the whole server; write them into {file}"
_OUTSIDE: Final = "ignored: a project that is not trusted cannot keep its data outside of itself"
_LINK_OUT: Final = "ignored: it is a link out of a project that is not trusted"
_LEADS_OUT: Final = (
    "expected a directory within the project, got a link out of it; remove it, trust the project, or "
    "name another data directory in a file of your own"
)


@frozen(kw_only=True)
class Draft:
    """The merged files, before templates are filled in and without values of untrusted files."""

    places: Places
    project: Project
    layers: Layers[Source]
    tree: Tree = field(repr=False)
    config: Config
    data_dir: DataDir
    warnings: tuple[ConfigWarning, ...]
    skipped: tuple[ConfigWarning, ...] = ()
    """Those of the warnings that are about entries left out: malformed, or providers not complete."""
    trusted: Trusted = ()
    sandbox: SandboxConfig = field(factory=SandboxConfig)
    command_env: CommandEnv = field(factory=CommandEnv)
    record: bool = False
    notify: NotifyConfig = field(factory=NotifyConfig)
    retention: RetentionConfig = field(factory=RetentionConfig)
    rules: tuple[LoadedRule, ...] = ()
    wishes: Wishes | None = None
    """What the project wants and may not do, because it is not trusted."""


def read_draft(
    places: Places,
    *,
    catalogue: Sequence[CatalogProvider] = (),
    data_dir: DataDir | None = None,
    overlay: Overlay | None = None,
    once: TrustedOnce | None = None,
) -> Draft:
    """Read, merge and check all files; *data_dir* overrides the choice of one. Reads the disk.

    *once* is trusted beside the directories that the user's files name, if its files still want
    what was granted. They are read a second time then.
    """
    read = partial(_read_files, places, catalogue, data_dir, overlay or {})
    draft = read(also=())
    granted = () if once is None else once.grants(draft.wishes)
    return read(also=granted) if granted else draft


def _read_files(
    places: Places,
    catalogue: Sequence[CatalogProvider],
    data_dir: DataDir | None,
    overlay: Overlay,
    *,
    also: Trusted,
) -> Draft:
    project = find_project(places.directory)
    files = _Files(overlay, places.data_file, project)
    files.read(places.user_sources())
    trusted = (*_trusted(files, places), *also)
    files.read(project.sources(trusted))
    below = Layers(tuple(files.layers))
    chosen = data_dir or _data_dir(places, project, below, trusted, files.warnings)
    files.read([chosen.source(trusted), places.workspace_source()])
    layers = Layers(tuple(files.layers))
    kept = remove_untrusted(layers)
    tree, config = merged_config(kept.layers)
    check_hooks(config, kept.layers)
    config, incomplete = complete_providers(config, kept.layers, known_for(config, catalogue))
    skipped = (*files.skipped, *incomplete)
    wishes = find_wishes(layers, places, project)
    if wishes is not None:
        wishes, unread = with_answer(wishes, places.declined_file)
        files.warnings += unread
    scripts = [
        ConfigWarning(kind=ConfigWarningKind.SCRIPT_NOT_RUN, file=path, text=_SCRIPT)
        for path in find_scripts(places, project)
    ]
    return Draft(
        places=places,
        project=project,
        layers=kept.layers,
        tree=tree,
        config=_with_rules(config, files.rules),
        data_dir=chosen,
        warnings=(*scripts, *files.warnings, *kept.warnings, *skipped),
        skipped=skipped,
        trusted=trusted,
        sandbox=merged_sandbox(each.tree for each in layers.layers if each.source.user_level),
        command_env=command_env(files.own),
        record=own_setting(files.own, "record", default=False),
        notify=own_setting(files.own, "notify", NotifyConfig()),
        retention=own_setting(files.own, "retention", RetentionConfig()),
        rules=tuple(files.rules),
        wishes=wishes,
    )


@define(eq=False)
class _Files:
    """The files that have been read so far, in order, each once."""

    overlay: Overlay
    data_file: Path
    project: Project
    layers: list[Layer[Source]] = field(factory=list, init=False)
    warnings: list[ConfigWarning] = field(factory=list, init=False)
    skipped: list[ConfigWarning] = field(factory=list, init=False)
    """Those of the warnings that are about entries left out."""
    own: list[ConfigFile] = field(factory=list, init=False)
    """Those of them that belong to the user."""
    rules: list[LoadedRule] = field(factory=list, init=False)
    """The permission rules of all of the user's files."""
    _seen: set[Path] = field(factory=set, init=False)

    def read(self, sources: Iterable[Source]) -> None:
        """Read the next files; those that do not exist are skipped."""
        for source in sources:
            resolved = real_path(source.path)
            tree = self.overlay.get(source.path)
            if tree is None and not source.may_run and not self.project.contains(resolved):
                self._say(ConfigWarningKind.NOT_TRUSTED, source, "", _LINK_OUT)
                continue
            tree = read_tree(source.path, resolved) if tree is None else tree
            if tree is not None and resolved not in self._seen:
                self._seen.add(resolved)
                self._add(source, tree)

    def _add(self, source: Source, tree: Tree) -> None:
        tree, malformed = without_malformed(flat_hooks(tree))
        for section, name, problem in malformed:
            self._skip(source, section, name, problem)
        content = check_types(tree, source.path)
        rules = () if content.permissions is None else content.permissions.rules
        if source.user_level:
            self.own.append(content)
            check_sandbox(content, source.path)
            self.rules += load_rules(rules, source.path)
            if file_limits(content, source.path) and source.kind in _OF_WORKSPACE:
                text = _LIMITS_ELSEWHERE.format(file=self.data_file)
                self._say(ConfigWarningKind.NOT_USED, source, LIMITS_KEY, text)
        elif content.crush_trio is not None:
            self._say(ConfigWarningKind.NOT_TRUSTED, source, OWN_KEY, _FOREIGN_OWN)
        if rules and not source.user_level:
            self._say(ConfigWarningKind.NOT_TRUSTED, source, "permissions.rules", _FOREIGN_RULES)
        for key in unknown_keys(tree):
            self._say(ConfigWarningKind.UNKNOWN_KEY, source, key, "unknown key, ignored")
        for keys, text in hook_warnings(content.hooks):
            self._say(ConfigWarningKind.NOT_USED, source, key_text(keys), text)
        self.layers.append(Layer(source=source, tree=tree))

    def _skip(self, source: Source, section: str, name: str, problem: str) -> None:
        """Say that an entry is left out; one of an untrusted project would be left out anyway."""
        provider = section == "providers"
        kind = ConfigWarningKind.PROVIDER_SKIPPED if provider else ConfigWarningKind.NOT_USED
        what = "the provider" if provider else f"{name} ({section})"
        entry = key_text((section, name))
        inside, _, expectation = problem.removeprefix(entry).partition(": ")
        text = f"{expectation}; until that is mended {what} is not used"
        warning = ConfigWarning(kind=kind, file=source.path, key=f"{entry}{inside}", text=text)
        self.skipped.append(warning)

    def _say(self, kind: ConfigWarningKind, source: Source, key: str, text: str) -> None:
        self.warnings.append(ConfigWarning(kind=kind, file=source.path, key=key, text=text))


def _with_rules(config: Config, rules: Sequence[LoadedRule]) -> Config:
    """Return *config* with the rules of all of the user's files, and those of no other file."""
    permissions = config.permissions
    if permissions is None:
        return config
    return evolve(config, permissions=evolve(permissions, rules=tuple(each.rule for each in rules)))


def _trusted(files: _Files, places: Places) -> Trusted:
    """Return the directories that the user trusts, from all of the user's files."""
    named = [each.crush_trio.trusted_directories for each in files.own if each.crush_trio]
    paths = [places.expand_home(text) for texts in named for text in texts]
    return tuple(real_path(path) for path in paths if path.is_absolute())


def _data_dir(
    places: Places,
    project: Project,
    layers: Layers[Source],
    trusted: Trusted,
    warnings: list[ConfigWarning],
) -> DataDir:
    configured = merged_config(layers)[1].options.data_directory
    origin = layers.origin("options", "data_directory")
    chosen = choose_data_dir(places, project, configured, origin, trusted)
    if chosen is None:
        warnings.append(
            ConfigWarning(
                kind=ConfigWarningKind.NOT_TRUSTED,
                file=None if origin is None else origin.path,
                key="options.data_directory",
                text=_OUTSIDE,
            )
        )
        chosen = choose_data_dir(places, project, "", None, trusted)
    assert chosen is not None  # only a configured one is ever refused
    straying = outside_data_dirs(project, trusted)
    if chosen.path in straying:
        raise ConfigInvalid.at(chosen.path, "", _LEADS_OUT)
    warnings += (
        ConfigWarning(kind=ConfigWarningKind.NOT_TRUSTED, file=each, text=_OUTSIDE)
        for each in straying
    )
    return chosen


def known_for(config: Config, catalogue: Sequence[CatalogProvider]) -> Known:
    """Return the built-in providers that *config* may name: none if it switches them off."""
    return {} if config.options.disable_default_providers else known_providers(catalogue)
