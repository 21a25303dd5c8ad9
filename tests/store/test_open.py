"""Which store a URL means, and what can be done with any of them."""

import subprocess
import sys

import pytest

from crush_trio.server.status import status_of
from crush_trio.store.errors import StoreCorrupt, StoreLocked
from crush_trio.store.memory.store import MemoryStore
from crush_trio.store.open import (
    SITE_VARIABLE,
    STORE_VARIABLE,
    SiteInvalid,
    StoreReport,
    StoreSettings,
    StoreUnknown,
    check_url,
    has_data,
    import_store,
    inspect_store,
    open_store,
)
from crush_trio.store.sqlite.store import SqliteStore
from tests.store.stores import run, session

pytestmark = pytest.mark.real_clock

SQLITE, MEMORY = StoreSettings(), StoreSettings("memory:")
WRONG = [
    "", "sqlite", "oracle:", "SQLITE:", ":", "sqlite:elsewhere", "sqlite:?synchronous=off", "memory:x", "/a/file.db",
    "postgresql", "postgresql:", "postgres:name", "postgresql:/run/socket",
]  # fmt: skip


NO_URLS = [
    "host=db user=crush password=hunter2 dbname=crush",
    "host=db password=hun:hunter2",
    "hunter2",
    "crush:hunter2@db/crush",
    "mysql://crush:hunter2@db/crush",
]


# ── Which one ───────────────────────────────────────────────────────────────────────────────────


async def test_the_default_is_a_file_in_the_data_directory(tmp_path):
    assert StoreSettings().url == "sqlite:"
    async with open_store(StoreSettings(), tmp_path / "data") as store:
        assert isinstance(store, SqliteStore)
        assert store.path.parent == tmp_path / "data"


@pytest.mark.parametrize(
    ("place", "number"), [("", 1), ("?synchronous=normal", 1), ("?synchronous=full", 2)]
)
async def test_the_url_says_whether_commits_wait_for_the_disk(tmp_path, place, number):
    async with open_store(StoreSettings(f"sqlite:{place}"), tmp_path) as store:
        pragma = "PRAGMA synchronous"
        found = await store._database.transact(lambda db: db.execute(pragma).fetchone())
        assert found == (number,)


async def test_a_store_in_memory_leaves_nothing_behind(tmp_path):
    async with open_store(MEMORY, tmp_path) as store:
        assert isinstance(store, MemoryStore)
        await store.commit(session("s"))
        await store.check()
    assert list(tmp_path.iterdir()) == []
    async with open_store(MEMORY, tmp_path) as again:
        assert await again.sessions() == []
        assert again.boot_id != store.boot_id


@pytest.mark.parametrize("url", NO_URLS)
def test_a_text_that_is_no_url_of_a_store_is_refused_without_its_password(url):
    with pytest.raises(StoreUnknown) as caught:
        check_url(StoreSettings(url))
    assert "hunter2" not in str(caught.value) + repr(StoreSettings(url))


@pytest.mark.parametrize("url", WRONG)
async def test_a_url_that_names_no_store_is_refused_before_anything_is_opened(tmp_path, url):
    settings = StoreSettings(url)
    with pytest.raises(StoreUnknown, match="use `sqlite:`, `memory:` or `postgresql:") as caught:
        open_store(settings, tmp_path)
    assert (caught.value.code, status_of(caught.value)) == ("store_unknown", 500)
    for ask in (has_data, inspect_store):
        with pytest.raises(StoreUnknown):
            await ask(settings, tmp_path)
    with pytest.raises(StoreUnknown):
        import_store(settings)
    assert list(tmp_path.iterdir()) == []


def test_the_site_is_that_of_the_variable():
    assert StoreSettings.from_environment({}).site == ""
    assert StoreSettings.from_environment({SITE_VARIABLE: "office 2"}).site == "office 2"


@pytest.mark.parametrize("site", [" a", "a\n", "a\0b", "x" * 256, "\u202eb"])
def test_a_site_that_a_person_would_not_recognise_is_refused(site):
    with pytest.raises(SiteInvalid):
        StoreSettings.from_environment({SITE_VARIABLE: site})


def test_what_follows_the_scheme_is_not_shown():
    settings = StoreSettings("oracle://user:secret@host/db")
    assert (settings.scheme, settings.place) == ("oracle", "//user:secret@host/db")
    assert "secret" not in repr(settings)
    with pytest.raises(StoreUnknown) as caught:
        import_store(settings)
    assert "secret" not in str(caught.value)


@pytest.mark.heavy
def test_sqlite_is_imported_only_for_a_store_of_that_kind():
    program = (
        "import sys\n"
        "from crush_trio.backend.settings import WorkspaceSettings\n"
        "from crush_trio.store.open import StoreSettings, import_store\n"
        "WorkspaceSettings()\n"
        "import_store(StoreSettings('memory:'))\n"
        "heavy = {'sqlite3', 'psycopg', 'quart', 'hypercorn', 'httpx', 'crush_trio.agent.coordinator',\n"
        "         'crush_trio.config', 'crush_trio.tools.shell', 'crush_trio.testing'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import_store(StoreSettings())\n"
        "print('sqlite3' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == ["[]", "True"]


@pytest.mark.heavy
def test_nothing_of_postgres_is_imported_for_another_store_or_for_its_url_alone():
    program = (
        "import sys\n"
        "from crush_trio.server.settings import ServerSettings\n"
        "from crush_trio.store.open import StoreSettings, check_driver, import_store\n"
        "def loaded():\n"
        "    return sorted(n for n in sys.modules if n.startswith(('psycopg', 'crush_trio.store.post')))\n"
        "ServerSettings.from_environment({})\n"
        "import_store(StoreSettings())\n"
        "print(loaded())\n"
        "settings = ServerSettings.from_environment({'CRUSH_TRIO_STORE': 'postgresql://u:p@h/d'})\n"
        "check_driver(settings.store)\n"
        "print(settings.store.secrets, 'psycopg' in sys.modules)\n"
        "import_store(settings.store)\n"
        "print('psycopg' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == ["[]", "('p',) False", "True"]


@pytest.mark.heavy
def test_without_the_package_an_error_has_the_command_that_installs_it():
    program = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "from crush_trio.errors import CrushError\n"
        "from crush_trio.store.open import StoreSettings, import_store\n"
        "try:\n"
        "    import_store(StoreSettings('postgresql://u:secret@h/d'))\n"
        "except CrushError as error:\n"
        "    print(error.code, error)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("store_unsuitable ")
    assert "pip install 'crush-trio[postgres]'" in ran.stdout
    assert "secret" not in ran.stdout


def test_the_environment_may_name_the_store():
    assert StoreSettings.from_environment({}) == StoreSettings()
    url = "postgresql://u:secret@h/d"
    settings = StoreSettings.from_environment({STORE_VARIABLE: url})
    assert (settings.url, settings.secrets) == (url, ("secret",))
    assert "secret" not in repr(settings)
    for wrong in ("", "oracle://u:secret@h/d"):
        with pytest.raises(StoreUnknown) as caught:
            StoreSettings.from_environment({STORE_VARIABLE: wrong})
        assert "secret" not in str(caught.value)


# ── Looking at one ──────────────────────────────────────────────────────────────────────────────


async def test_looking_for_data_creates_none(tmp_path):
    data = tmp_path / "data"
    assert not await has_data(SQLITE, data)
    assert not data.exists()
    async with open_store(SQLITE, data):
        pass
    assert await has_data(SQLITE, data)
    assert not await has_data(MEMORY, data)


async def test_inspecting_counts_sessions_and_runs_without_an_ending(tmp_path):
    async with open_store(SQLITE, tmp_path) as store:
        await store.commit(session("s"), session("t"), run())
    assert await inspect_store(SQLITE, tmp_path) == StoreReport(sessions=2, orphans=1)


async def test_inspecting_says_who_has_the_store_and_what_is_wrong_with_it(tmp_path):
    async with open_store(SQLITE, tmp_path) as store:
        with pytest.raises(StoreLocked):
            await inspect_store(SQLITE, tmp_path)
        path = store.path
    path.write_bytes(b"this was never a database" * 100)
    with pytest.raises(StoreCorrupt):
        await inspect_store(SQLITE, tmp_path)
