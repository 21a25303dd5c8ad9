"""Walks: their order, their bounds, and that they end when their task does."""

import threading

import trio

from crush_trio.tools.search.walk import STEP, DirectoryWalk, IgnoreFilter


def put(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def walk(root, **options):
    return DirectoryWalk(IgnoreFilter(root, root), check=lambda: None, **options)


def paths(root, **options):
    return [each.path for each in walk(root, **options).entries()]


def test_upper_levels_come_first_and_names_are_sorted(tmp_path):
    put(tmp_path, "b/z/1", "b/a", "a/x/2", "c", "A")
    assert paths(tmp_path) == ["A", "a", "b", "c", "a/x", "b/a", "b/z", "a/x/2", "b/z/1"]


def test_depth_limits_the_walk(tmp_path):
    put(tmp_path, "a/b/c/d")
    assert paths(tmp_path, depth=2) == ["a", "a/b"]


def test_left_out_directories_are_not_entered(tmp_path):
    put(tmp_path, "node_modules/x/y", ".git/config", "a/__pycache__/b.pyc", "a/c")
    assert paths(tmp_path) == ["a", "a/c"]


def test_links_are_reported_and_not_followed(tmp_path):
    put(tmp_path, "a/file")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "out").symlink_to("/")
    found = {each.path: (each.is_dir, each.is_file) for each in walk(tmp_path).entries()}
    assert found == {
        "a": (True, False),
        "a/file": (False, True),
        "a/loop": (False, False),
        "dangling": (False, False),
        "out": (False, False),
    }


def test_directory_that_cannot_be_read_is_empty(tmp_path):
    assert paths(tmp_path / "missing") == []


def test_walk_without_time_is_cut_short(tmp_path):
    put(tmp_path, "a/b/c")
    hurried = walk(tmp_path, seconds=0)
    assert [each.path for each in hurried.entries()] == ["a"]
    assert hurried.cut_short
    assert not walk(tmp_path).cut_short


def test_large_directory_is_interrupted_in_the_middle(tmp_path):
    put(tmp_path, *(f"{number:05}" for number in range(3 * STEP)))
    asked = []
    list(DirectoryWalk(IgnoreFilter(tmp_path, tmp_path), check=lambda: asked.append(1)).entries())
    assert len(asked) == 4


async def test_cancelled_walk_ends_at_its_next_step(tmp_path):
    put(tmp_path, "a/1", "b/2", "c/3")
    begun, cancelled, seen = trio.Event(), threading.Event(), []

    def look():
        for entry in DirectoryWalk(IgnoreFilter(tmp_path, tmp_path)).entries():
            seen.append(entry.path)
            if entry.path == "c":
                trio.from_thread.run_sync(begun.set)
                cancelled.wait()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, look)
            await begun.wait()
            scope.cancel()
            cancelled.set()
    assert scope.cancelled_caught
    assert seen == ["a", "b", "c"]
