"""The files that tell an agent what to know."""

import os

import pytest

from crush_trio.config.context_files import (
    COUNT_LIMIT,
    SIZE_LIMIT,
    ContextPath,
    has_context_file,
    read_context_files,
)
from crush_trio.config.sources import find_project


def by_name(found, directory):
    return {os.path.relpath(each.path, directory): each.text for each in found}


async def read(directory, **kwargs):
    """Return what was read, by path relative to *directory*."""
    return by_name(await read_context_files(find_project(directory), **kwargs), directory)


async def test_files_of_the_fixed_list_are_read(tmp_path):
    (tmp_path / ".github").mkdir()
    for name in ("AGENTS.md", "CLAUDE.md", ".cursorrules", ".github/copilot-instructions.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "README.md").write_text("not for agents")
    assert await read(tmp_path) == {
        name: name
        for name in (".github/copilot-instructions.md", ".cursorrules", "CLAUDE.md", "AGENTS.md")
    }


async def test_names_are_found_whatever_their_case_and_read_once(tmp_path):
    (tmp_path / "Agents.MD").write_text("mixed")
    assert await read(tmp_path) == {"Agents.MD": "mixed"}
    (tmp_path / "AGENTS.md").write_text("upper")
    assert await read(tmp_path) == {"AGENTS.md": "upper"}


async def test_a_directory_means_its_files_in_order(tmp_path):
    rules = tmp_path / ".cursor" / "rules"
    (rules / "z").mkdir(parents=True)
    for name in ("b.md", "a.md", "z/c.md"):
        (rules / name).write_text(name)
    assert list((await read(tmp_path)).values()) == ["a.md", "b.md", "z/c.md"]


async def test_a_directory_without_end_is_cut(tmp_path):
    for number in range(COUNT_LIMIT + 5):
        (tmp_path / f"{number:03}").write_text("x")
    assert len(await read(tmp_path, configured=[ContextPath(path=tmp_path)])) == COUNT_LIMIT


async def test_configured_files_follow_and_then_the_users_own(tmp_path):
    project, user = tmp_path / "project", tmp_path / "user"
    project.mkdir()
    user.mkdir()
    for path in (project / "AGENTS.md", project / "notes.md", user / "CRUSH.md", user / "all.md"):
        path.write_text(path.name)
    found = await read(
        project,
        configured=[ContextPath(path=project / name) for name in ("notes.md", "agents.md", "no")],
        user_directory=user,
        everywhere=[ContextPath(path=user / "all.md")],
    )
    assert list(found) == ["AGENTS.md", "notes.md", "../user/CRUSH.md", "../user/all.md"]


async def test_a_long_file_is_cut_and_says_so(tmp_path):
    (tmp_path / "AGENTS.md").write_text("x" * (SIZE_LIMIT + 1))
    [text] = (await read(tmp_path)).values()
    assert text.startswith("x" * SIZE_LIMIT + "\n")
    assert f"only its first {SIZE_LIMIT} bytes" in text


async def test_text_that_is_no_utf_8_is_repaired(tmp_path):
    (tmp_path / "AGENTS.md").write_bytes(b"caf\xe9")
    assert await read(tmp_path) == {"AGENTS.md": "caf\ufffd"}


async def test_what_cannot_be_read_is_left_out(tmp_path):
    os.mkfifo(tmp_path / "AGENTS.md")
    (tmp_path / "CRUSH.md").symlink_to(tmp_path / "nothing")
    assert await read(tmp_path) == {}


async def test_a_link_is_followed_within_the_project_and_not_out_of_it(tmp_path):
    (tmp_path / "secret").write_text("private")
    project = tmp_path / "project"
    project.mkdir()
    (project / ".git").mkdir()
    (project / "real.md").write_text("shared")
    (project / "AGENTS.md").symlink_to("real.md")
    (project / "CLAUDE.md").symlink_to("../secret")
    assert await read(project) == {"AGENTS.md": "shared"}


async def test_a_confined_path_stays_in_the_project(tmp_path):
    (tmp_path / "secret").write_text("private")
    project = tmp_path / "project"
    project.mkdir()
    outside = tmp_path / "secret"
    assert await read(project, configured=[ContextPath(path=outside, confined=True)]) == {}
    assert await read(project, configured=[ContextPath(path=outside)]) == {"../secret": "private"}


@pytest.mark.parametrize("name", ["AGENTS.md", "claude.md", ".cursorrules"])
def test_one_file_of_the_list_is_enough_to_be_found(tmp_path, name):
    assert not has_context_file(tmp_path)
    (tmp_path / name).touch()
    assert has_context_file(tmp_path)


# ── Together with a configuration ───────────────────────────────────────────────────────────────


async def test_a_workspace_reads_what_its_configuration_names(home):
    home.environment["DOCS"] = str(home.root / "docs")
    for path in ("project/AGENTS.md", "project/notes.md", "docs/a.md", "home/mine.md"):
        home.write(home.root / path, path)
    home.write(home.user_file.parent / "AGENTS.md", "the user's")
    home.write(
        home.user_file,
        {
            "options": {
                "context_paths": ["notes.md", "$DOCS/a.md"],
                "global_context_paths": ["~/mine.md"],
            }
        },
    )
    found = await (await home.load()).context_files()
    assert [each.text for each in found] == [
        "project/AGENTS.md",
        "project/notes.md",
        "docs/a.md",
        "the user's",
        "home/mine.md",
    ]


async def test_a_project_cannot_name_files_outside_of_itself(home):
    home.write(home.home / "key", "private")
    home.write(home.project / "notes.md", "fine")
    paths = ["~/key", "../home/key", str(home.home / "key"), "notes.md"]
    home.write(home.project_file, {"options": {"context_paths": paths}})
    assert [each.text for each in await (await home.load()).context_files()] == ["fine"]
    home.write(home.user_file, {"crush_trio": {"trusted_directories": [str(home.project)]}})
    found = await (await home.load()).context_files()
    assert {each.text for each in found} == {"private", "fine"}
