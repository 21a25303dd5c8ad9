"""What each path is in a sandbox: roles, mount points on the way, placeholders. No sandbox is run."""

from pathlib import Path

import pytest

from crush_trio.tools.sandbox.confinement import Confinement, NotConfined
from crush_trio.tools.sandbox.layout import Role, lay_out

W, R, H = Role.WRITABLE, Role.READ_ONLY, Role.HIDDEN


def laid_out(directory, **names):
    """Return roles and placeholders, by names relative to *directory*."""
    paths = {key: [directory / name for name in value] for key, value in names.items()}
    layout = lay_out(Confinement(**paths))
    roles = {str(path.relative_to(directory)): role for path, role in layout.roles}
    return roles, [str(path.relative_to(directory)) for path in layout.placeholders]


def make(directory, *names):
    for name in names:
        (directory / name).mkdir(parents=True)


def test_everything_between_a_writable_and_a_protected_path_is_a_mount_point(tmp_path):
    make(tmp_path, "home/a/b/.git/hooks", "home/a/.secret")
    roles, placeholders = laid_out(
        tmp_path,
        writable=["home"],
        protected=["home/a/b/.git/hooks"],
        hidden=["home/a/.secret"],
    )
    assert roles == {
        "home": W,
        "home/a": W,
        "home/a/.secret": H,
        "home/a/b": W,
        "home/a/b/.git": W,
        "home/a/b/.git/hooks": R,
    }
    assert placeholders == []
    assert [*roles] == sorted(roles, key=lambda name: name.count("/"))


def test_the_first_name_that_is_missing_is_reserved(tmp_path):
    make(tmp_path, "work")
    roles, placeholders = laid_out(
        tmp_path, writable=["work"], protected=["work/.git/hooks", "work/.git/config"]
    )
    assert roles == {"work": W, "work/.git": R}
    assert placeholders == ["work/.git"]


def test_what_nothing_can_write_needs_no_protection(tmp_path):
    make(tmp_path, "work", "other", "secret/keys")
    roles, placeholders = laid_out(
        tmp_path,
        writable=["work", "missing", "work/sub"],
        protected=["other/.bashrc", "other", "secret/keys/x"],
        hidden=["secret", "secret/keys", "no-such"],
    )
    assert (roles, placeholders) == ({"work": W, "secret": H}, [])


def test_a_writable_path_below_a_hidden_one_is_seen(tmp_path):
    make(tmp_path, "home/.data/work")
    roles, _ = laid_out(
        tmp_path,
        writable=["home", "home/.data/work"],
        hidden=["home/.data"],
        protected=["home/.data/work/.git"],
    )
    assert roles == {
        "home": W,
        "home/.data": H,
        "home/.data/work": W,
        "home/.data/work/.git": R,
    }


def test_the_most_restrictive_role_of_a_path_counts(tmp_path):
    make(tmp_path, "a", "b")
    roles, _ = laid_out(tmp_path, writable=["a", "b"], protected=["a"], hidden=["b"])
    assert roles == {"a": R, "b": H}


def test_links_are_resolved_only_where_no_command_can_make_them(tmp_path):
    make(tmp_path, "real", "outside")
    (tmp_path / "work").symlink_to("real")
    (tmp_path / "real/cache").symlink_to("../outside")
    roles, placeholders = laid_out(
        tmp_path, writable=["work", "work/cache", "real/cache"], protected=["work/.git"]
    )
    assert roles == {"real": W, "real/.git": R}
    assert placeholders == ["real/.git"]


def test_the_directory_of_a_protected_link_is_read_only_and_so_is_its_target(tmp_path):
    make(tmp_path, "work/.git", "work/scripts")
    (tmp_path / "work/.git/hooks").symlink_to("../scripts")
    roles, _ = laid_out(
        tmp_path, writable=["work"], protected=["work/.git/config", "work/.git/hooks"]
    )
    assert roles == {"work": W, "work/.git": R, "work/.git/config": R, "work/scripts": R}


@pytest.mark.parametrize("target", ["/nowhere", ".crush", "sub"])
def test_a_protected_link_directly_in_a_writable_directory_is_refused(tmp_path, target):
    make(tmp_path, "work/sub")
    (tmp_path / "work/.crush").symlink_to(target)
    with pytest.raises(NotConfined, match="symbolic link in a writable directory"):
        laid_out(tmp_path, writable=["work"], protected=["work/.crush/crush.json"])


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/nul\0l"])
def test_a_confinement_needs_plain_absolute_paths(path):
    with pytest.raises(ValueError, match="absolute"):
        Confinement(writable=[Path(path)])
