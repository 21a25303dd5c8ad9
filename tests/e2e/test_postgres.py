"""The store on PostgreSQL as people use it: by a variable or an option, with real processes."""

import pytest

from tests.cli.processes import Home
from tests.store.postgres.server import connect, new_database

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, {"CRUSH_TRIO_STORE": new_database()})


def test_a_session_is_in_the_database_and_in_no_file(home):
    code, said, _ = home.call("run", "hello")
    assert code == 0
    assert said
    code, listed, _ = home.call("sessions")
    assert code == 0
    assert "hello" in listed
    assert [path.name for path in home.work.rglob("*.db*")] == []
    with connect(home.extra["CRUSH_TRIO_STORE"]) as connection:
        [site, path] = connection.execute("SELECT site, path FROM workspaces").fetchone()
        assert (bool(site), path) == (True, str(home.work))
        ended = connection.execute("SELECT state FROM runs").fetchall()
        assert ended == [("completed",)]


def test_the_state_of_the_store_is_part_of_the_report(home):
    home.call("run", "hello")
    _, report, _ = home.call("doctor")
    assert "is intact and has 1 session" in report
    home.extra["CRUSH_TRIO_STORE"] = "postgresql://someone:hidden-word@127.0.0.1:1/none"
    _, report, _ = home.call("doctor")
    assert "the database cannot be reached" in report
    assert "PostgreSQL at 127.0.0.1:1, database none" in report
    assert "hidden-word" not in report


def test_old_sessions_are_pruned_in_the_database(home):
    home.call("run", "hello")
    assert home.call("prune", "--unused-for", "1d")[0] == 0
    with connect(home.extra["CRUSH_TRIO_STORE"]) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
        connection.execute("UPDATE sessions SET updated_at = 100")
        assert home.call("prune", "--unused-for", "1d")[0] == 0
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


def test_a_database_that_is_away_is_said_to_be(home):
    home.extra["CRUSH_TRIO_STORE"] = "postgresql://someone:hidden-word@127.0.0.1:1/none"
    code, said, error = home.call("run", "hello")
    assert code != 0
    assert "the database cannot be reached" in error
    assert "hidden-word" not in said + error
