"""What a grant covers, and what the rules of the configuration decide.

A `Subject` is a permission request in the terms of patterns: a command line, a path, the origin of a
URL. `Coverage` is what a grant was given for. Neither has I/O, except that `PathPolicy` resolves links.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from attrs import define, field, frozen

from crush_trio.agent.asks.commands import CommandLine, is_covered, is_touched, patterns_of
from crush_trio.agent.asks.path_policy import PathPolicy
from crush_trio.config.rules.patterns import (
    ExactLine,
    HostPattern,
    Invocation,
    Output,
    PathPattern,
    Pattern,
    PatternKind,
    kind_of,
    origin_of,
)
from crush_trio.config.rules.rules import LoadedRule, RuleProblem, check_rule
from crush_trio.errors import RuleNotPossible
from crush_trio.tools.base import LEAVE_SANDBOX
from crush_trio.wire.asks import (
    Grant,
    GrantScope,
    PermissionRequest,
    PermissionRule,
    RuleDecision,
)
from crush_trio.wire.ids import AskId, RunId, SessionId

OUTSIDE_SANDBOX = "outside_sandbox"
"""The parameter of a command that wants to leave the sandbox."""


@frozen(kw_only=True)
class Subject:
    """What a request is about. With `always_asks`, it is asked whatever grants and lists say."""

    request: PermissionRequest
    line: CommandLine | None = None
    path: Path | None = None
    origin: HostPattern | None = None
    always_asks: bool = False


def subject_of(request: PermissionRequest, paths: PathPolicy) -> Subject:
    """Return what *request* is about."""
    params = request.params or {}

    def text(key: str) -> str:
        value = params.get(key)
        return value if isinstance(value, str) else ""

    named = text("file_path") or text("path")
    path = Path(request.path, named) if named else None
    touches = [] if path is None else [path]
    match kind_of(request.tool_name):
        case PatternKind.COMMAND if text("command"):
            line = CommandLine.parse(text("command"), Path(text("working_dir") or request.path))
            leaves = request.action == LEAVE_SANDBOX or bool(params.get(OUTSIDE_SANDBOX))
            always_asks = leaves or line.is_protected or paths.is_protected(line.directory)
            return Subject(request=request, line=line, always_asks=always_asks)
        case PatternKind.HOST if text("url"):
            always_asks = any(map(paths.is_protected, touches))
            return Subject(
                request=request, path=path, origin=origin_of(text("url")), always_asks=always_asks
            )
        case PatternKind.PATH:
            path = Path(request.path, text("file_path"))
            return Subject(request=request, path=path, always_asks=paths.is_protected(path))
    return Subject(request=request, always_asks=any(map(paths.is_protected, touches)))


# ── Grants ──────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Coverage:
    """What a grant covers: requests for the same action of the same tool that match the patterns."""

    shown: PermissionRequest
    patterns: tuple[Pattern, ...] = ()

    @classmethod
    def of(cls, subject: Subject, paths: PathPolicy) -> "Coverage":
        """Return what an answer covers; *subject* is not one that always asks."""
        request, line, path, origin = subject.request, subject.line, subject.path, subject.origin
        patterns: tuple[Pattern, ...] = ()
        if line is not None:
            patterns = patterns_of(line, paths)
        elif origin is not None:
            below = () if path is None else (PathPattern(str(path.parent), below=True),)
            patterns = (origin, *below)
        elif path is not None:
            shown = Path(request.path)
            base = shown if path.is_relative_to(shown) else path
            patterns = (PathPattern(str(base), below=True),)
        return cls(shown=request, patterns=patterns)

    @property
    def texts(self) -> tuple[str, ...]:
        """The patterns for people to read; the name of the tool if it has none."""
        return tuple(map(str, self.patterns)) or (" ".join(filter(None, _identity(self.shown))),)

    def is_about(self, request: PermissionRequest) -> bool:
        """Whether a request is for the same action of the same tool."""
        shown = self.shown
        return (shown.tool_name, shown.action) == (request.tool_name, request.action)

    def covers(self, subject: Subject, paths: PathPolicy) -> bool:
        """Whether a request about the same action is covered; not for command lines."""
        request, path, origin = subject.request, subject.path, subject.origin
        if not self.patterns or (path is None and origin is None):
            return _identity(self.shown) == _identity(request) and self.shown.path == request.path
        for pattern in self.patterns:
            if isinstance(pattern, HostPattern) and pattern != origin:
                return False
            if isinstance(pattern, PathPattern) and not (
                path is not None and paths.reaches(Path(pattern.path), path)
            ):
                return False
        return True


def _identity(request: PermissionRequest) -> tuple[str, ...]:
    """Return what identifies the requests of a tool without patterns."""
    server = (request.params or {}).get("mcp_name")
    names = request.tool_name in {"list_mcp_resources", "read_mcp_resource"}
    return (request.tool_name, server if names and isinstance(server, str) else "")


@define(eq=False)
class Grants:
    """The grants of one workspace."""

    _by_id: dict[AskId, tuple[Grant, Coverage]] = field(factory=dict, init=False)

    @property
    def all(self) -> tuple[Grant, ...]:
        """All grants, oldest first."""
        return tuple(grant for grant, _ in self._by_id.values())

    def cover(self, subject: Subject, run_id: RunId, paths: PathPolicy) -> bool:
        """Whether the grants settle a request of a run.

        The commands of one line may be covered by different grants.
        """
        request, line = subject.request, subject.line
        if subject.always_asks:
            return False
        reaching = [
            coverage
            for grant, coverage in self._by_id.values()
            if reaches(grant, request, run_id) and coverage.is_about(request)
        ]
        if line is None or not reaching:
            return any(each.covers(subject, paths) for each in reaching)
        patterns = {
            pattern
            for each in reaching
            for pattern in each.patterns
            if isinstance(pattern, Invocation | Output)
            or (isinstance(pattern, ExactLine) and each.shown.path == request.path)
        }
        return is_covered(line, patterns, paths)

    def remember(self, grant: Grant, coverage: Coverage) -> None:
        """Add *grant*."""
        self._by_id[grant.id] = grant, coverage

    def revoke(self, grant_id: AskId) -> bool:
        """Remove a grant; False if the id is unknown."""
        return self._by_id.pop(grant_id, None) is not None

    def forget_run(self, run_id: RunId) -> None:
        """Remove the grants of a run that has ended."""
        self._keep(lambda grant: grant.scope is not GrantScope.RUN or grant.run_id != run_id)

    def forget_session(self, session_id: SessionId) -> None:
        """Remove the grants of a deleted session."""
        self._keep(
            lambda grant: grant.scope is not GrantScope.SESSION or grant.session_id != session_id
        )

    def _keep(self, wanted: Callable[[Grant], bool]) -> None:
        self._by_id = {key: pair for key, pair in self._by_id.items() if wanted(pair[0])}


def reaches(grant: Grant, request: PermissionRequest, run_id: RunId) -> bool:
    """Whether the scope of *grant* reaches a request of a run."""
    match grant.scope:
        case GrantScope.ONCE | GrantScope.ALWAYS:
            return False
        case GrantScope.RUN:
            return grant.run_id == run_id
        case GrantScope.SESSION:
            return grant.session_id == request.session_id
        case GrantScope.PROJECT:
            return True


# ── Lists and rules ───────────────────────────────────────────────────────────────────────────────────────


def in_allow_list(entries: Collection[str], tool_name: str, action: str) -> bool:
    """Whether an allow-list contains the tool, or this action of it."""
    return tool_name in entries or f"{tool_name}:{action}" in entries


def decide(rules: Sequence[LoadedRule], subject: Subject, paths: PathPolicy) -> RuleDecision | None:
    """Return what the rules decide: a denial wins, then asking, then allowing; None if none applies."""
    here = [each for each in rules if _applies(each.rule, subject.request.tool_name, paths)]
    for decision in (RuleDecision.DENY, RuleDecision.ASK):
        if any(each.rule.decision is decision and _touches(each, subject, paths) for each in here):
            return decision
    allowing = [each for each in here if each.rule.decision is RuleDecision.ALLOW]
    if allowing and not subject.always_asks and _allow(allowing, subject, paths):
        return RuleDecision.ALLOW
    return None


def _applies(rule: PermissionRule, tool: str, paths: PathPolicy) -> bool:
    named = tool.startswith(rule.tool[:-1]) if rule.tool.endswith("*") else tool == rule.tool
    return named and (not rule.directory or paths.workspace.is_relative_to(rule.directory))


def _touches(rule: LoadedRule, subject: Subject, paths: PathPolicy) -> bool:
    """Whether a rule that asks or denies is about a request; if that cannot be known, it is."""
    match rule.pattern:
        case None:
            return True
        case PathPattern() as pattern:
            return subject.path is None or pattern.matches(subject.path, paths.workspace)
        case HostPattern() as pattern:
            return subject.origin is None or _is_host(pattern, subject.origin)
        case pattern:
            return subject.line is None or is_touched(subject.line, pattern)


def _allow(rules: Iterable[LoadedRule], subject: Subject, paths: PathPolicy) -> bool:
    """Whether rules allow a request. The commands of one line may be allowed by different rules."""
    path, origin, line = subject.path, subject.origin, subject.line
    patterns = [each.pattern for each in rules]
    if line is not None:
        there = _in_workspace(line, paths)
        kinds = Invocation | Output | ExactLine if there else Invocation | Output
        return is_covered(line, [each for each in patterns if isinstance(each, kinds)], paths)
    if origin is not None:
        hosts = [each for each in patterns if isinstance(each, HostPattern)]
        named = any(_is_host(each, origin) for each in hosts)
        return named and (path is None or paths.holds(path))
    if path is not None:
        named = any(
            each.matches(path, paths.workspace)
            for each in patterns
            if isinstance(each, PathPattern)
        )
        return named and not paths.is_private(path)
    return None in patterns


def _in_workspace(line: CommandLine, paths: PathPolicy) -> bool:
    """Whether a line runs in the workspace itself. Rules have whole lines only for there.

    In a directory below, the paths in the same line mean other files.
    """
    return paths.resolve(line.directory) == paths.workspace


def _is_host(pattern: HostPattern, origin: HostPattern) -> bool:
    return pattern.matches(origin.scheme, origin.host, origin.port)


def rules_for(subject: Subject, paths: PathPolicy) -> tuple[PermissionRule, ...]:
    """Return the rules that allow *subject* and what is like it, in this workspace.

    Raises `RuleNotPossible` for what is asked each time, and for what no pattern can describe.
    """
    request, line = subject.request, subject.line
    if subject.always_asks:
        raise RuleNotPossible("it is asked each time")
    if line is not None and line.runs_anything:
        raise RuleNotPossible(
            "the command runs another program, or one that its text does not show"
        )
    if subject.origin is not None and subject.path is not None and not paths.holds(subject.path):
        raise RuleNotPossible("the file would be outside the workspace")
    if _identity(request)[1:] != ("",):
        raise RuleNotPossible(f"rules about {request.tool_name} are about all servers")
    patterns = [each for each in Coverage.of(subject, paths).patterns if _is_of_rule(each, request)]
    exact = any(isinstance(each, ExactLine) for each in patterns)
    if exact and line is not None and not _in_workspace(line, paths):
        raise RuleNotPossible("it would run below the workspace, and a whole line is allowed in it")
    rules = tuple(
        PermissionRule(
            decision=RuleDecision.ALLOW,
            tool=request.tool_name,
            pattern=text,
            directory=str(paths.workspace),
        )
        for text in (map(str, patterns) if patterns else ("",))
    )
    try:
        for rule in rules:
            check_rule(rule)
    except RuleProblem as problem:
        raise RuleNotPossible(str(problem)) from None
    return rules


def _is_of_rule(pattern: Pattern, request: PermissionRequest) -> bool:
    """Whether a pattern of a grant is one of a rule: of a download, only the host is."""
    about_host = kind_of(request.tool_name) is PatternKind.HOST
    return not (about_host and isinstance(pattern, PathPattern))
