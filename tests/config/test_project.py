"""Whether a project has been introduced to agents yet."""

import stat

from crush_trio.config import mark_initialized, needs_init


async def test_a_project_with_something_in_it_is_to_be_introduced_once(tmp_path):
    data_dir = tmp_path / ".crush"
    (tmp_path / "main.py").touch()
    assert await needs_init(tmp_path, data_dir) is True
    await mark_initialized(data_dir)
    assert await needs_init(tmp_path, data_dir) is False
    await mark_initialized(data_dir)
    assert (data_dir / "init").is_file()
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700


async def test_an_empty_directory_has_nothing_to_introduce(tmp_path):
    assert await needs_init(tmp_path, tmp_path / ".crush") is False


async def test_our_own_things_and_gits_do_not_count(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".crush").mkdir()
    assert await needs_init(tmp_path, tmp_path / ".crush") is False


async def test_a_data_directory_elsewhere_does_not_hide_a_file_of_its_name(tmp_path):
    (tmp_path / "data").touch()
    assert await needs_init(tmp_path, tmp_path / "elsewhere" / "data") is True


async def test_a_project_that_has_instructions_has_been_introduced(tmp_path):
    (tmp_path / "main.py").touch()
    (tmp_path / "agents.md").touch()
    assert await needs_init(tmp_path, tmp_path / ".crush") is False
