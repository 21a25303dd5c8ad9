"""The tool `todos`: replaces the todo list of the session."""

from collections.abc import Sequence
from typing import Annotated, Final

from attrs import define, frozen

from crush_trio.events.facts import session_fact
from crush_trio.store.changes import SessionEdited
from crush_trio.tools.base import (
    About,
    BuiltIn,
    Metadata,
    ToolCall,
    ToolError,
    ToolResult,
    read_arguments,
)
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.codec import unstructure
from crush_trio.wire.views import Todo, TodoStatus

STORE_LIMIT: Final = 5.0
"""Seconds that the store may take to write; after that the run fails."""


@frozen(kw_only=True)
class TodoArgument:
    """One todo, as the schema for the model describes it."""

    content: Annotated[str, About("What is to be done, as an instruction: Run the tests.")]
    status: Annotated[TodoStatus, About("How far it has come.")]
    active_form: Annotated[str, About("What to show meanwhile: Running the tests.")]


@frozen(kw_only=True)
class TodosArguments:
    """The arguments, as the schema for the model describes them."""

    todos: Annotated[tuple[TodoArgument, ...], About("The whole list, in order.")]


@frozen(kw_only=True)
class SentTodo:
    """One todo as the model sent it; the status is not checked yet."""

    content: str
    status: str = ""
    active_form: str = ""


@frozen(kw_only=True)
class SentTodos:
    """The arguments as the model sent them."""

    todos: tuple[SentTodo, ...]


@define(eq=False)
class TodosTool(BuiltIn):
    """Replaces the todo list of the session."""

    name = "todos"
    arguments = TodosArguments

    bench: Workbench

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Store the list and publish the session. An unknown status fails the run."""
        todos = _read(read_arguments(call.input, SentTodos).todos)
        before = (await self.bench.store.session(call.session_id)).todos
        await self._store(call, todos)
        counts = {status: sum(todo.status is status for todo in todos) for status in TodoStatus}
        content = (
            f"The todo list has {len(todos)} entries now: "
            f"{counts[TodoStatus.COMPLETED]} completed, "
            f"{counts[TodoStatus.IN_PROGRESS]} in progress, {counts[TodoStatus.PENDING]} pending."
        )
        return ToolResult(content=content, metadata=progress(before, todos))

    async def _store(self, call: ToolCall, todos: tuple[Todo, ...]) -> None:
        """Store the list and publish the session; shielded, so that no cancel separates the two."""
        store, now = self.bench.store, self.bench.clock.unix()
        edited = SessionEdited(id=call.session_id, at=now, todos=todos)
        session = await store.submit(edited, session=call.session_id).certain(STORE_LIMIT)
        assert session is not None, "a session that was edited exists"
        self.bench.publish(session_fact(session, busy=True))


def _read(sent: Sequence[SentTodo]) -> tuple[Todo, ...]:
    """Return the list; raise `ValueError` for an unknown status."""
    for index, todo in enumerate(sent):
        if not todo.content.strip():
            raise ToolError(f"todos[{index}].content is required")
    return tuple(
        Todo(content=todo.content, status=_status(todo.status), active_form=todo.active_form)
        for todo in sent
    )


def _status(text: str) -> TodoStatus:
    try:
        return TodoStatus(text)
    except ValueError:
        raise ValueError(f"a todo cannot have the status {text!r}") from None


def progress(before: Sequence[Todo], after: Sequence[Todo]) -> Metadata:
    """Return the metadata for clients: how much is completed, and what changed."""
    was = {todo.content: todo.status for todo in before}
    completed = [todo for todo in after if todo.status is TodoStatus.COMPLETED]
    just_completed = [
        todo.content
        for todo in completed
        if was.get(todo.content, TodoStatus.COMPLETED) is not TodoStatus.COMPLETED
    ]
    just_started = [
        todo.active_form or todo.content
        for todo in after
        if todo.status is TodoStatus.IN_PROGRESS and was.get(todo.content) is not todo.status
    ]
    metadata: Metadata = {"is_new": not before, "todos": unstructure(tuple(after))}
    if just_completed:
        metadata["just_completed"] = just_completed
    if just_started:
        metadata["just_started"] = just_started[-1]
    return {**metadata, "completed": len(completed), "total": len(after)}
