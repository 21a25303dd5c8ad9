"""The client without async: it waits, it can be interrupted, and it has every method of the async one."""

import inspect
import os
import signal
import threading
from contextlib import ExitStack, asynccontextmanager

import anyio
import pytest
import trio
from anyio.from_thread import start_blocking_portal

from crush_trio.client import (
    Asked,
    ClientClosed,
    RunEnded,
    ServerUnreachable,
    SyncRun,
    TextPiece,
    client,
    open_client_sync,
    run,
    session_routes,
    sync,
    workspace,
    workspace_routes,
)
from crush_trio.client.sync_calls import Caller, Face, limited
from crush_trio.errors import SessionNotFound
from crush_trio.wire.runs import RunState
from tests.client.served import serving

SIDES = {
    each.__orig_bases__[0].__args__[0]: each
    for each in vars(sync).values()
    if inspect.isclass(each) and issubclass(each, Face) and each is not Face
}
"""The synchronous class of each async one."""


# ── Every method ────────────────────────────────────────────────────────────────────────────────


def test_every_class_of_the_client_with_methods_that_wait_has_a_synchronous_one():
    modules = (client, run, session_routes, workspace, workspace_routes)
    classes = {
        each
        for module in modules
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__
    }
    assert classes - SIDES.keys() == {run.RunStream}
    assert set(SIDES) == classes - {run.RunStream}


@pytest.mark.parametrize("of", SIDES, ids=lambda each: each.__name__)
def test_it_has_every_method_with_the_same_parameters_and_text(of):
    public = {name for name in dir(of) if not name.startswith("_")}
    assert public - {name for name in dir(SIDES[of]) if not name.startswith("_")} == set()
    for name, method in inspect.getmembers(of, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            twin = getattr(SIDES[of], name)
            assert not inspect.iscoroutinefunction(twin)
            assert (twin.__doc__, list(inspect.signature(twin).parameters)) == (
                method.__doc__,
                list(inspect.signature(method).parameters),
            )


# ── Against a server ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found[0]


@pytest.fixture
def threads():
    """Check that no thread of a client is left."""

    def portals():
        return {each for each in threading.enumerate() if "portal" in each.name}

    before = portals()
    yield
    assert portals() == before


@pytest.mark.slow
def test_a_program_without_async_submits_follows_answers_and_cancels(address, tmp_path, threads):
    with open_client_sync(address, environ={}) as desk:
        assert desk.version().version
        assert desk.address == address
        with desk.open_workspace(tmp_path, interactive=True) as here:
            events = here.events()
            session = here.sessions.create("a session")
            assert next(events).entity.id == session.id
            assert [each.id for each in here.sessions.list()] == [session.id]
            with pytest.raises(SessionNotFound):
                here.sessions.get("nowhere")

            handle = here.submit("run `touch asked`", session=session.id)
            assert isinstance(handle, SyncRun)
            pieces = []
            for piece in handle.stream():
                pieces.append(piece)
                if isinstance(piece, Asked):
                    assert here.permissions.grant(piece.request)
            assert pieces[-1] == RunEnded(handle.wait())
            assert (tmp_path / "asked").exists()
            assert handle.result_text() == handle.view().text

            again = here.submit("long 100000", session=session.id)
            for piece in here.run(again.id).stream():
                if isinstance(piece, TextPiece):
                    break
            assert here.cancel(session.id).complete
            assert again.wait().state is RunState.CANCELLED
        assert desk.workspaces() == ()
        with pytest.raises(ClientClosed, match="the workspace has been left"):
            here.show()
    with pytest.raises(ClientClosed, match="the client has been closed"):
        desk.health()


@pytest.mark.slow
def test_ctrl_c_and_a_timeout_end_the_wait_and_the_client_goes_on(address, tmp_path, threads):
    """A second thread uses the same objects; it interrupts the first when the answer has begun."""

    def interrupt():
        for piece in handle.stream():
            if isinstance(piece, TextPiece):
                break
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open_client_sync(address, environ={}) as desk, desk.open_workspace(tmp_path) as here:
            session = here.sessions.create("a session").id
            handle = here.submit("long 100000", session=session)
            other = threading.Thread(target=interrupt)
            other.start()
            with pytest.raises(KeyboardInterrupt):
                handle.wait()
            other.join()
            with pytest.raises(TimeoutError), desk.timeout(0.01):
                handle.wait()
            assert handle.cancel().complete
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_leaves_the_blocks_and_releases_the_workspace(address, tmp_path, threads):
    def interrupted():
        with open_client_sync(address, environ={}) as desk, desk.open_workspace(tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with open_client_sync(address, environ={}) as desk:
        assert desk.workspaces() == ()


@pytest.mark.slow
def test_a_server_that_is_not_there_is_told_as_to_everybody(threads):
    environ = {"CRUSH_TRIO_HOST": "tcp://127.0.0.1:9"}
    with pytest.raises(ServerUnreachable, match=r"crush-trio serve --host tcp://127.0.0.1:9"):
        with open_client_sync(environ=environ) as desk, desk.open_workspace(os.curdir):
            pytest.fail("it was opened")


@pytest.mark.slow
def test_when_the_server_stays_away_a_wait_ends_and_leaving_says_why(tmp_path, threads):
    def left_alone():
        with open_client_sync(address, environ={}) as desk:
            with desk.open_workspace(tmp_path, patience=0.2) as here:
                handle = here.submit("long 9999", session=here.sessions.create("x").id)
                server.close()
                with pytest.raises(ClientClosed):
                    handle.wait()

    with ExitStack() as server:
        address, _ = server.enter_context(serving(tmp_path))
        with pytest.raises(ServerUnreachable, match="gave up after"):
            left_alone()


# ── Blocks that are held ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def caller():
    with start_blocking_portal("trio") as portal:
        yield Caller(portal)


@asynccontextmanager
async def block(log, *, entering=None, inside=None, leaving=None):
    """A block that fails on the way in, while it lasts, or on the way out; and logs that it was left."""
    try:
        if entering is not None:
            raise entering
        async with anyio.create_task_group() as tasks:
            if inside is not None:
                tasks.cancel_scope.cancel()
            yield "value"
    finally:
        log.append("left")
        error = inside or leaving
        if error is not None:
            raise error


def test_a_block_is_entered_and_left_in_the_other_thread(caller):
    log = []
    with caller.hold(block(log)) as value:
        assert (value, log) == ("value", [])
    assert log == ["left"]


def test_a_block_that_cannot_be_entered_says_why(caller):
    with pytest.raises(ServerUnreachable):
        with caller.hold(block([], entering=ServerUnreachable())):
            pytest.fail("it was entered")


def test_a_block_that_ends_early_says_why_when_it_is_left(caller):
    """Its calls can only say that it has ended."""
    with pytest.raises(ServerUnreachable):
        with caller.hold(block([], inside=ServerUnreachable())):
            pass
    with pytest.raises(ServerUnreachable):
        with caller.hold(block([], inside=ServerUnreachable())):
            raise ClientClosed("the workspace has been left")


def test_an_error_of_the_program_itself_is_not_replaced(caller):
    log = []
    with pytest.raises(ZeroDivisionError):
        with caller.hold(block(log, leaving=ServerUnreachable())):
            raise ZeroDivisionError
    assert log == ["left"]


def test_a_deadline_holds_for_calls_and_for_entering_and_the_nearer_one_counts(caller):
    @asynccontextmanager
    async def stuck():
        await trio.sleep_forever()
        yield

    with limited(60), limited(0), limited(60):
        with pytest.raises(TimeoutError):
            caller.call(trio.sleep_forever)
        with pytest.raises(TimeoutError), caller.hold(stuck()):
            pytest.fail("it was entered")
    assert caller.call(trio.lowlevel.checkpoint) is None


async def test_a_call_in_a_task_of_trio_is_refused_at_once(caller):
    with pytest.raises(RuntimeError, match="use open_client there"):
        with open_client_sync(environ={}):
            pytest.fail("it was opened")
    with pytest.raises(RuntimeError, match="use open_client there"):
        caller.call(trio.lowlevel.checkpoint)


@pytest.mark.slow
def test_a_cell_of_a_notebook_runs_in_asyncio_and_may_block(address):
    async def cell():
        with open_client_sync(address, environ={}) as desk:
            return desk.version().version

    assert anyio.run(cell)


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_process_is_told_so_and_can_leave_the_blocks(address):
    """The thread of the client is not there: a call would wait for ever."""
    child = 0
    try:
        with open_client_sync(address, environ={}) as client:
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                client.health()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
            client.health()
    except RuntimeError as error:
        if child != 0:
            raise
        os._exit(42 if "open another one" in str(error) else 1)


def test_a_workspace_that_is_left_after_its_client_is_told_so(address, tmp_path, threads):
    late = ExitStack()
    with open_client_sync(address, environ={}) as client:
        late.enter_context(client.open_workspace(tmp_path))
    with pytest.raises(ClientClosed):
        late.close()
