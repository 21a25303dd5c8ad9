"""One directory, one key."""

import os

import pytest

from crush_trio.backend.settings import check_path, key_of, resolve_key, use_directory
from crush_trio.errors import PathInvalid

pytestmark = pytest.mark.item("E2")


@pytest.fixture
def here(tmp_path):
    """A directory that no link leads to."""
    return tmp_path.resolve()


def test_a_directory_is_its_own_key(here):
    assert key_of(str(here)) == str(here)


@pytest.mark.parametrize("spelling", ["{}/", "{}/.", "{}//", "{}/a/..", "{}/./a/../"])
def test_spelling_makes_no_difference(here, spelling):
    (here / "a").mkdir()
    assert key_of(spelling.format(here)) == str(here)


def test_a_relative_path_starts_at_the_process_directory(here, monkeypatch):
    monkeypatch.chdir(here)
    assert key_of("a/b") == str(here / "a" / "b")


def test_links_are_followed_wherever_they_stand(here):
    (here / "real" / "inner").mkdir(parents=True)
    (here / "link").symlink_to("real")
    (here / "twice").symlink_to("link")
    assert key_of(str(here / "twice" / "inner")) == str(here / "real" / "inner")


def test_a_missing_path_is_cleaned(here):
    assert key_of(f"{here}/no/./such//thing/..") == str(here / "no" / "such")


def test_a_directory_keeps_its_key_when_it_comes_into_being(here):
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    before = key_of(str(here / "link" / "new"))
    (here / "real" / "new").mkdir()
    assert key_of(str(here / "link" / "new")) == before == str(here / "real" / "new")


def test_a_link_in_a_circle_is_no_hindrance(here):
    (here / "round").symlink_to("about")
    (here / "about").symlink_to("round")
    assert key_of(str(here / "round")).startswith(str(here))


@pytest.mark.parametrize("path", ["/a\0b", "/\ud800"])
def test_text_that_cannot_be_a_path_is_refused(path):
    with pytest.raises(PathInvalid, match="character"):
        key_of(path)


# ── Paths that can be a workspace ───────────────────────────────────────────────────────────────


def test_a_path_that_may_not_be_followed_is_refused(monkeypatch):
    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.path.realpath", refuse)
    with pytest.raises(PathInvalid, match="cannot be followed: Permission denied"):
        key_of("/somewhere")


@pytest.mark.parametrize(
    ("path", "why"),
    [("a/b", "relative"), (".", "relative"), ("~/a", "expanded"), ("~", "expanded")],
)
def test_a_path_that_means_another_place_elsewhere_is_refused_with_advice(path, why):
    with pytest.raises(PathInvalid, match=f"{why}.*absolute path"):
        check_path(path)


def test_a_missing_directory_is_made_only_if_that_is_wanted(here):
    missing = here / "no" / "such"
    with pytest.raises(PathInvalid, match='does not exist; make it, or send "create": true'):
        use_directory(missing)
    assert not missing.parent.exists()
    use_directory(missing, create=True)
    assert missing.is_dir()
    use_directory(missing, create=True)


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file", "is not a directory"),
        ("file/below", "Not a directory"),
        ("round", "symbolic links|is not a directory"),
        ("x" * 300, "too long"),
    ],
)
def test_what_is_no_directory_is_refused_with_the_reason(here, name, why, create):
    (here / "file").touch()
    (here / "round").symlink_to("round")
    with pytest.raises(PathInvalid, match=why):
        use_directory(here / name, create=create)


def test_a_directory_that_cannot_be_read_is_refused(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root may read everything
    with pytest.raises(PathInvalid, match="allow the user of the server"):
        use_directory(here)


@pytest.mark.real_clock
async def test_resolving_gives_the_same_key_without_blocking(here):
    (here / "link").symlink_to(here)
    assert await resolve_key(os.fspath(here / "link")) == str(here)
