"""The shape of the package: what `docs/architecture.md` says of its folders, and how large they may be."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "crush_trio"
PAGE = ROOT / "docs" / "architecture.md"

LINES = 400
"""The longest module."""

MODULES = 520
"""The number of modules, `__init__.py` files included. Raise it only with a new feature."""

FOLDER = 14
"""The largest number of modules in a folder, `__init__.py` not counted."""

SMALL = 60
"""A module with fewer lines and one importer belongs into that importer."""

ALONE = ("crush_trio.cli.commands.", "crush_trio.tools.")
"""Packages in which small modules with one importer may stand: commands and tools."""


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_by(path, known):
    """Return the modules of the package that *path* imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("crush_trio"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def listed_folders():
    """Return the folders of the page's tree, as paths, by their indentation."""
    [block] = re.findall(
        r"^## The tree$.*?^```$(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    found, above = [], []
    for line in block.strip("\n").splitlines():
        indent, name = re.match(r"( *)(\w+)/ +\S", line).groups()
        above = [*above[: len(indent) // 2], name]
        found.append("/".join(above))
    return found


def test_the_page_lists_every_folder_of_the_package():
    folders = {path.parent.relative_to(ROOT).as_posix() for path in modules()}
    assert sorted(listed_folders()) == sorted(folders)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_can_be_read_in_one_sitting(path):
    assert len(path.read_text("utf-8").splitlines()) <= LINES


def test_a_folder_has_about_a_dozen_modules():
    sizes = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {str(folder): size for folder, size in sizes.items() if size > FOLDER} == {}


def test_every_folder_says_what_lives_there():
    fronts = [path for path in modules() if path.name == "__init__.py"]
    assert {path.parent for path in modules()} == {path.parent for path in fronts}
    assert [path for path in fronts if not ast.get_docstring(ast.parse(path.read_text()))] == []


@pytest.mark.heavy
def test_small_modules_with_one_importer_are_part_of_it():
    known = {name_of(path): path for path in modules()}
    importers = defaultdict(set)
    for name, path in known.items():
        for imported in imported_by(path, known):
            importers[imported].add(name)
    assert [
        name
        for name, path in known.items()
        if path.name not in {"__init__.py", "__main__.py"}
        and len(path.read_text("utf-8").splitlines()) < SMALL
        and len(importers[name]) == 1
        and not name.startswith(ALONE)
    ] == []


def test_the_number_and_the_size_of_the_modules_stay_within_bounds():
    paths = modules()
    lines = [len(p.read_text("utf-8").splitlines()) for p in paths if p.name != "__init__.py"]
    assert len(paths) <= MODULES
    assert 100 <= median(lines) <= 260
