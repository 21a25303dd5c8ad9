"""Which files are looked for, in which order, and whose word they are."""

from pathlib import Path

import pytest

from crush_trio.config.sources import (
    SYSTEM_FILE,
    DataDir,
    Places,
    Source,
    SourceKind,
    choose_data_dir,
    find_project,
    find_scripts,
    is_trusted,
)

HOME = Path("/nobody/home")


def places(tmp_path, **environment):
    return Places(directory=tmp_path, home=HOME, environment=environment)


def project_source(**more):
    return Source(kind=SourceKind.PROJECT, path=Path("/p/crush.json"), **more)


# ── The user's files ────────────────────────────────────────────────────────────────────────────


def test_without_variables_the_user_files_are_in_the_home_directory(tmp_path):
    assert [source.path for source in places(tmp_path).user_sources()] == [
        SYSTEM_FILE,
        HOME / ".config/crush/crush.json",
        HOME / ".local/share/crush/crush.json",
    ]


def test_the_xdg_directories_are_honoured(tmp_path):
    here = places(tmp_path, XDG_CONFIG_HOME="/x/config", XDG_DATA_HOME="/x/data")
    assert here.user_directory == Path("/x/config/crush")
    assert here.data_file == Path("/x/data/crush/crush.json")


def test_our_own_variables_name_directories_and_go_before_the_xdg_ones(tmp_path):
    here = places(
        tmp_path,
        CRUSH_GLOBAL_CONFIG="/own/config",
        XDG_CONFIG_HOME="/x",
        CRUSH_GLOBAL_DATA="/own/data",
        XDG_DATA_HOME="/x",
    )
    assert here.user_directory == Path("/own/config")
    assert here.data_file == Path("/own/data/crush.json")


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_a_variable_that_names_no_absolute_directory_counts_as_absent(tmp_path, value):
    here = places(tmp_path, CRUSH_GLOBAL_CONFIG=value, XDG_DATA_HOME=value)
    assert here.user_directory == HOME / ".config/crush"
    assert here.data_file == HOME / ".local/share/crush/crush.json"


def test_the_user_files_are_all_the_users_word(tmp_path):
    assert all(source.user_level and source.may_run for source in places(tmp_path).user_sources())


@pytest.mark.parametrize("name", ["directory", "home"])
def test_a_relative_path_is_refused(tmp_path, name):
    given = {"directory": tmp_path, "home": tmp_path, name: Path("somewhere")}
    with pytest.raises(ValueError, match=f"{name} must be an absolute path"):
        Places(**given)


def test_the_environment_is_not_shown(tmp_path):
    assert "secret" not in repr(places(tmp_path, KEY="secret"))


# ── The project ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("marker", ["file", "directory"])
def test_the_search_goes_up_to_the_root_of_the_work_tree_and_no_further(tmp_path, marker):
    root = tmp_path / "root"
    deep = root / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (root / ".git").mkdir() if marker == "directory" else (root / ".git").write_text("gitdir: x")
    assert find_project(deep).directories == (root, root / "a", deep)


def test_outside_of_a_work_tree_only_the_directory_itself_counts(tmp_path):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_project(deep).directories == (deep,)


def test_a_linked_workspace_belongs_to_where_the_link_leads(tmp_path):
    real = tmp_path / "repository" / "sub"
    real.mkdir(parents=True)
    (real.parent / ".git").mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    assert find_project(link).directories == (real.parent, real)


def test_project_files_are_read_from_the_root_down_the_hidden_one_last(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "a").mkdir()
    found = [source.path for source in find_project(tmp_path / "a").sources(())]
    names = ["crush.json", ".crush.json", "a/crush.json", "a/.crush.json"]
    assert found == [tmp_path / name for name in names]


def test_scripts_are_found_beside_the_user_file_and_in_the_project(tmp_path):
    config = tmp_path / "config"
    project = tmp_path / "project"
    for path in (config / "crushrc", project / "crushrc", project / ".crushrc"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    here = Places(
        directory=project, home=tmp_path, environment={"CRUSH_GLOBAL_CONFIG": str(config)}
    )
    found = find_scripts(here, find_project(project))
    assert found == (config / "crushrc", project / "crushrc", project / ".crushrc")


# ── Trust ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("directory", "trusted"),
    [("/a/b", True), ("/a/b/c", True), ("/a", False), ("/a/bc", False), ("/x/a/b", False)],
)
def test_trust_is_by_whole_names_and_reaches_down(directory, trusted):
    assert is_trusted(Path(directory), (Path("/a/b"),)) is trusted


def test_a_trusted_project_file_may_run_commands_and_another_may_not(tmp_path):
    [first, *_] = find_project(tmp_path).sources((tmp_path,))
    assert (first.trusted, first.user_level, first.may_run) == (True, False, True)
    [first, *_] = find_project(tmp_path).sources(())
    assert not first.may_run


# ── The data directory ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    return find_project(tmp_path / "project" / "sub")


def chosen(project, configured="", origin=None, argument=""):
    here = Places(directory=project.directory, home=project.root.parent, data_dir=argument)
    return choose_data_dir(here, project, configured, origin)


def test_the_argument_goes_before_everything(project):
    outside = project.root.parent / "x"
    assert chosen(project, "y", argument=str(outside)) == DataDir(path=outside, user_level=True)
    assert chosen(project, argument="here").path == project.directory / "here"
    assert chosen(project, argument="~/there").path == project.root.parent / "there"


def test_then_what_the_configuration_says(project):
    (project.root / ".crush").mkdir()
    user = Source(kind=SourceKind.USER, path=Path("/u"), user_level=True)
    assert chosen(project, "data", user).path == project.directory / "data"


def test_then_the_closest_directory_there_is_within_the_project(project):
    (project.root.parent / ".crush").mkdir()
    assert chosen(project).path == project.directory / ".crush"
    (project.root / ".crush").mkdir()
    assert chosen(project).path == project.root / ".crush"
    (project.directory / ".crush").mkdir()
    assert chosen(project).path == project.directory / ".crush"


def test_a_project_nobody_trusts_cannot_lead_out_of_itself(project):
    assert chosen(project, "../../elsewhere", project_source()) is None
    assert chosen(project, "/elsewhere", project_source()) is None
    trusting = chosen(project, "/elsewhere", project_source(trusted=True))
    assert trusting.path == Path("/elsewhere")
    assert not trusting.user_level


def test_nor_can_it_with_a_link(project):
    (project.directory / "link").symlink_to(project.root.parent)
    assert chosen(project, "link/x", project_source()) is None


def test_a_file_in_a_data_directory_within_the_project_may_have_come_with_it(project):
    user = Source(kind=SourceKind.USER, path=Path("/u"), user_level=True)
    inside, outside = chosen(project, "data", user), chosen(project, "/elsewhere", user)
    assert not inside.source(()).user_level
    assert outside.source(()).user_level
    assert inside.source((project.root,)).may_run


def test_a_loop_of_links_is_no_reason_to_fail(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert find_project(tmp_path).contains(loop)
