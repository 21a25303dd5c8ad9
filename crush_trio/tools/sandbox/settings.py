"""`CommandSandbox`: what the commands of a workspace may touch, from the configuration and the disk.

A command that a person approved may change the workspace, temporary files and the caches of package
managers, with the network that is configured. A command that ran unasked, because it only reads, may
change nothing and has no network: if it was judged wrongly, it still cannot write. Private directories are
hidden from both. A person's own commands (`run_shell`) do not run in a sandbox.

Only files of the user configure it. See docs/sandbox.md.
"""

import errno
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import trio
from attrs import define, evolve, field

from crush_trio.config.files import CommandPolicy, SandboxConfig, SandboxMode
from crush_trio.config.snapshot import LoadedConfig, private_paths
from crush_trio.tools.sandbox.confinement import (
    Confinement,
    Network,
    NotConfined,
    SandboxKind,
)
from crush_trio.tools.sandbox.enforcement import reduced
from crush_trio.tools.sandbox.machine import Approval, MachineSandbox, no_sandbox
from crush_trio.tools.sandbox.paths import (
    caches,
    git_paths,
    hidden_paths,
    protected_paths,
    temporary_directories,
)

if TYPE_CHECKING:
    from crush_trio.tools.shell.process import Command

log = logging.getLogger(__name__)

NOT_AVAILABLE: Final = (
    "commands run only in a sandbox here (crush_trio.sandbox.mode is require), and this machine has "
    "none: install bubblewrap, or set the mode to auto; crush-trio doctor --security tells more"
)
"""Why a command does not run if a sandbox is required and there is none."""


SHARED_MEMORY: Final = (Path("/dev/shm"),)
"""Writable under Landlock; bubblewrap gives each command its own."""


class Configured(Protocol):
    """The configuration of a workspace, as the sandbox uses it."""

    @property
    def current(self) -> LoadedConfig:
        """The configuration as it is now."""
        ...


@define(eq=False, kw_only=True)
class CommandSandbox:
    """The sandbox of one workspace's commands, as currently configured.

    Call `ready` before the rest. `for_approved` and `for_unasked` read the disk; call them in a thread.
    Without a configuration there is no sandbox.
    """

    live: Configured | None = field(default=None, repr=False)
    machine: MachineSandbox = field(factory=no_sandbox)

    async def ready(self) -> None:
        """Find out which sandbox the machine has, unless the configuration wants none."""
        if self.settings.mode is SandboxMode.OFF:
            await trio.lowlevel.checkpoint()
        else:
            await self.machine.find()

    @property
    def settings(self) -> SandboxConfig:
        """What the user's files say."""
        return SandboxConfig(mode=SandboxMode.OFF) if self.live is None else self._loaded.sandbox

    @property
    def kind(self) -> SandboxKind:
        """The mechanism that holds commands; none if it is off or there is none."""
        if self.settings.mode is SandboxMode.OFF or self.machine.found is None:
            return SandboxKind.NONE
        return self.machine.found

    @property
    def refusal(self) -> str:
        """Why no command may run: a sandbox is required and there is none. Empty otherwise."""
        required = self.settings.mode is SandboxMode.REQUIRE
        return NOT_AVAILABLE if required and self.kind is SandboxKind.NONE else ""

    @property
    def allows(self) -> bool:
        """Whether commands run without asking, because the sandbox holds them."""
        allowed = self.settings.commands is CommandPolicy.ALLOW
        return allowed and self.kind is not SandboxKind.NONE

    def confine(self, approval: Approval) -> Confinement | None:
        """Return what a command may touch that was allowed to run by *approval*; None for anything."""
        match approval:
            case Approval.UNASKED:
                return self.for_unasked()
            case Approval.APPROVED | Approval.ALLOWED:
                return self._held_in()
            case Approval.OUTSIDE:
                return None

    async def held(self, command: "Command") -> "Command":
        """Return *command*, a server or hook of the user's that is to run in the sandbox.

        It may touch what an approved command may. Raises `NotConfined` if a sandbox is required and
        there is none; if it is not required, the command runs without one, and this is logged.
        """
        await self.ready()
        if self.refusal:
            raise NotConfined(errno.EPERM, self.refusal, command.argv[0])
        if self.kind is SandboxKind.NONE:
            log.warning("sandbox.none", extra={"program": command.argv[0]})
        confinement = await trio.to_thread.run_sync(self._held_in)
        return evolve(command, confinement=confinement, sandbox=self.kind)

    def _held_in(self) -> Confinement | None:
        """Return what `for_approved` does, for a command that is about to run.

        Only what exists can be hidden. So the directories of the user's configuration are made where the
        command could make them: the home directory may be the workspace, or below a temporary directory
        as in many containers. With a configuration of its own a command could end its sandbox.
        """
        if self.kind is not SandboxKind.BUBBLEWRAP:
            return self.for_approved()
        # Looked for first: another command, in a thread of its own, may make them at any time.
        missing = [each for each in _own_directories(self._loaded) if not each.exists()]
        found = self.for_approved()
        assert found is not None
        reached = [each for each in missing if _below(_resolved(each), found.writable)]
        for each in reached:
            with suppress(OSError):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.for_approved() if reached else found

    def for_approved(self) -> Confinement | None:
        """Return what an approved command may touch; None if there is no sandbox. Changes nothing."""
        return None if self.kind is SandboxKind.NONE else self._enforceable(self._approved())[0]

    def losses(self) -> tuple[str, ...]:
        """Return in sentences what the sandbox cannot enforce of what approved commands may touch."""
        return () if self.kind is SandboxKind.NONE else self._enforceable(self._approved())[1]

    def _approved(self) -> Confinement:
        config, home = self._loaded, _resolved(self._loaded.places.home)
        environment, project = config.environment, config.project
        git = git_paths(project.root)
        configured = tuple(config.places.expand_home(each) for each in config.sandbox.writable)
        writable = _unique(
            (
                project.directory,
                *git.directories,
                *temporary_directories(environment, home),
                *(SHARED_MEMORY if self.kind is SandboxKind.LANDLOCK else ()),
                *caches(environment, home),
                *configured,
            )
        )
        hidden = self._hidden(config, home, shown=configured)
        protected, watched = protected_paths(
            home, project.directories, config.data_dir, git, config.trusted
        )

        def in_reach(paths: list[Path]) -> tuple[Path, ...]:
            named = dict.fromkeys(Path(_resolved(each.parent), each.name) for each in paths)
            return tuple(
                each for each in named if _below(each, writable) and not _below(each, hidden)
            )

        return Confinement(
            writable=writable,
            protected=in_reach(protected),
            hidden=hidden,
            watched=in_reach(watched),
            network=Network(config.sandbox.network.value),
        )

    def for_unasked(self) -> Confinement | None:
        """Return what a command that runs unasked may touch; None without a sandbox."""
        if self.kind is SandboxKind.NONE:
            return None
        config, home = self._loaded, _resolved(self._loaded.places.home)
        hidden = (*self._hidden(config, home), *private_paths(config))
        return self._enforceable(Confinement(hidden=_unique(hidden), network=Network.OFF))[0]

    def _enforceable(self, wanted: Confinement) -> tuple[Confinement, tuple[str, ...]]:
        """Return the part of *wanted* that the machine can enforce, and sentences about the rest.

        Landlock makes a directory that contains a hidden one impossible to list. A workspace that
        cannot be listed is of no use, so nothing in it is hidden then.
        """
        workspace = self._loaded.project.directory
        inside = [path for path in wanted.hidden if path.is_relative_to(workspace)]
        if self.kind is not SandboxKind.LANDLOCK or not inside:
            return reduced(wanted, self.kind)
        visible = evolve(wanted, hidden=[path for path in wanted.hidden if path not in inside])
        enforced, lost = reduced(visible, self.kind)
        shown = tuple(f"{path} is not hidden, because it is in the workspace" for path in inside)
        return enforced, (*shown, *lost)

    @property
    def _loaded(self) -> LoadedConfig:
        assert self.live is not None
        return self.live.current

    def _hidden(
        self, config: LoadedConfig, home: Path, *, shown: tuple[Path, ...] = ()
    ) -> tuple[Path, ...]:
        """Return what is hidden: never the workspace, nor what contains it, nor what is *shown*."""
        places, workspace = config.places, config.project.directory
        own = _own_directories(config)
        if not config.data_dir.is_relative_to(workspace):
            own.append(config.data_dir)
        usual = hidden_paths(config.environment, home, os.getuid(), own)
        configured = (places.expand_home(each) for each in config.sandbox.hidden)
        hidden = _unique((*(path for path in usual if not _below(path, shown)), *configured))
        return tuple(path for path in hidden if not workspace.is_relative_to(path))


def _own_directories(config: LoadedConfig) -> list[Path]:
    """Return the directories of the user's own configuration files."""
    return [config.places.user_directory, config.places.data_file.parent]


def _below(path: Path, directories: Iterable[Path]) -> bool:
    return any(map(path.is_relative_to, directories))


def _unique(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return *paths* with links resolved, each once."""
    return tuple(dict.fromkeys(map(_resolved, paths)))


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))
