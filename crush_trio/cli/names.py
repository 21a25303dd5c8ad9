"""Sessions, runs and models that a command's arguments name.

A session or run may be named by the first characters of its id, and a model without its provider, as
long as that is unambiguous.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from crush_trio.cli.exits import IdAmbiguous, ModelUnknown, NothingToContinue
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.config.known_providers import known_providers
from crush_trio.errors import SessionNotFound
from crush_trio.wire.config import ProviderConfig, SelectedModel
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import Session

SHORTEST: Final = 4
"""The fewest characters of an id that name it."""

_LISTED: Final = 8
_CHECK: Final = "crush-trio config check"


def match_id(text: str, ids: Iterable[str]) -> str | None:
    """Return the id that equals *text*, or the only one that begins with it; raises `IdAmbiguous`."""
    found = set()
    for each in ids:
        if each == text:
            return each
        if len(text) >= SHORTEST and each.startswith(text):
            found.add(each)
    if len(found) > 1:
        raise IdAmbiguous(f"{len(found)} ids begin with {text!r}; write more of it")
    return found.pop() if found else None


async def find_session(workspace: RemoteWorkspace, text: str) -> Session:
    """Return the session that *text* names; raises `SessionNotFound` or `IdAmbiguous`."""
    sessions = await workspace.sessions.list()
    found = match_id(text, (session.id for session in sessions))
    if found is None and len(text) >= SHORTEST:
        return await workspace.sessions.get(SessionId(text))
    if found is None:
        raise SessionNotFound(repr(text))
    return next(session for session in sessions if session.id == found)


async def latest_session(workspace: RemoteWorkspace) -> Session:
    """Return the session that was used last; raises `NothingToContinue`."""
    sessions = await workspace.sessions.list()
    if not sessions:
        raise NothingToContinue
    return sessions[0]


def find_run(text: str, runs: Iterable[RunView]) -> RunId | None:
    """Return the run that *text* names, by its id or its submitter's run id; None if none matches."""
    names: dict[str, RunId] = {
        name: run.id for run in runs for name in (run.id, run.run_id) if name
    }
    found = match_id(text, names)
    return None if found is None else names[found]


def find_model(text: str, providers: Mapping[str, ProviderConfig]) -> SelectedModel:
    """Return the model that *text* names, as `provider/model` or `model`; raises `ModelUnknown`.

    A built-in provider may have models that it does not list.
    """
    for name, provider in providers.items():
        if text.startswith(f"{name}/") and _may_have(provider, text[len(name) + 1 :]):
            return SelectedModel(provider=name, model=text[len(name) + 1 :])
    owners = [
        name
        for name, provider in providers.items()
        if any(model.id == text for model in provider.models)
    ]
    if len(owners) == 1:
        return SelectedModel(provider=owners[0], model=text)
    if owners:
        raise ModelUnknown(
            f"{len(owners)} providers have {text!r}; write {' or '.join(f'{name}/{text}' for name in owners)}"
        )
    name, _, model_id = text.partition("/")
    if model_id and name in providers and name in known_providers(()):
        return SelectedModel(provider=name, model=model_id)  # perhaps newer than the catalogue
    known = [f"{name}/{model.id}" for name, each in providers.items() for model in each.models]
    more = ", …" if len(known) > _LISTED else ""
    left_out = f"; why others are left out: {_CHECK}" if model_id and name not in providers else ""
    raise ModelUnknown(f"{text!r}; choose one of: {', '.join(known[:_LISTED])}{more}{left_out}")


def _may_have(provider: ProviderConfig, model: str) -> bool:
    """Whether a provider lists a model, or discovers its models only later."""
    return bool(provider.discover_models) or any(each.id == model for each in provider.models)
