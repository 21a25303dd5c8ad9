"""The public names: they exist, they are documented, and importing them drags nothing along."""

import ast
import importlib
import inspect
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import crush_trio
from benchmarks.micro import import_cost

PACKAGES = [
    "crush_trio",
    "crush_trio.events",
    "crush_trio.runtime",
    "crush_trio.server",
    "crush_trio.testing",
    "crush_trio.testing.explore",
]
LAZY = [*PACKAGES[:-1], "crush_trio.config"]
PUBLIC = [
    (package, name)
    for package in PACKAGES
    for name in importlib.import_module(package).__all__
    if name != "__version__"
]


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_names_nothing_twice(package):
    names = importlib.import_module(package).__all__
    assert len(set(names)) == len(names)
    constants, classes, functions = [], [], []
    for name in names:
        kind = constants if name.isupper() else classes if name[0].isupper() else functions
        kind.append(name)
    assert names == [*sorted(constants), *sorted(classes), *sorted(functions)]


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_a_public_name_can_be_imported(package, name):
    assert getattr(importlib.import_module(package), name) is not None


def tree_of(module):
    return ast.parse(Path(importlib.import_module(module).__file__).read_text("utf-8")).body


def stub_of(package):
    """Return what the stub of a lazy front says to type checkers."""
    path = Path(importlib.import_module(package).__file__).with_suffix(".pyi")
    return ast.parse(path.read_text("utf-8")).body


@pytest.mark.parametrize("package", LAZY)
def test_a_lazy_front_and_its_stub_name_the_same_things(package):
    stub = {
        (node.module, alias.name)
        for node in stub_of(package)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    front = importlib.import_module(package)
    homes = front._HOMES
    [listed] = [node.value for node in stub_of(package) if isinstance(node, ast.Assign)]
    assert ast.literal_eval(listed) == front.__all__
    assert stub == {(module, name) for module, names in homes.items() for name in names}


@pytest.mark.parametrize("package", LAZY)
def test_a_lazy_front_says_what_it_has_and_what_it_has_not(package):
    front = importlib.import_module(package)
    assert set(front.__all__) <= set(dir(front))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        front.nonsense  # noqa: B018


@pytest.mark.heavy
def test_the_doors_can_be_used_after_importing_the_front_alone():
    program = (
        "import crush_trio\nprint(crush_trio.errors.CrushError, crush_trio.client.open_client)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def origin_of(package, name):
    """Return the module from which the front of *package* takes *name*."""
    nodes = stub_of(package) if package in LAZY else tree_of(package)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            module = importlib.import_module(node.module)
            return origin_of(node.module, name) if hasattr(module, "__path__") else node.module
    raise AssertionError(f"{package} does not import {name}")


def alias_docstring(package, name):
    """Return the text below the assignment that makes the alias; Python itself keeps none."""
    for node, following in pairwise(tree_of(origin_of(package, name))):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            text = following.value if isinstance(following, ast.Expr) else None
            return text.value if isinstance(text, ast.Constant) else None
    return None


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_a_public_name_has_a_docstring_and_is_ours(package, name):
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__.startswith("crush_trio.")
        assert vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    else:
        assert alias_docstring(package, name), f"nothing says what {name} is for"


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_everything_public_about_a_class_has_a_docstring(package, name):
    value = getattr(importlib.import_module(package), name)
    if not inspect.isclass(value) or not value.__module__.startswith("crush_trio."):
        return
    undocumented = [
        member
        for member, what in vars(value).items()
        if not member.startswith("_")
        and (inspect.isfunction(what) or isinstance(what, property | classmethod | staticmethod))
        and not inspect.getdoc(what)
    ]
    assert undocumented == []


@pytest.mark.parametrize("package", ["crush_trio.events", "crush_trio.runtime"])
def test_the_front_door_hands_on_the_very_same_objects(package):
    inner = importlib.import_module(package)
    shared = set(inner.__all__) & set(crush_trio.__all__)
    assert shared
    assert all(getattr(inner, name) is getattr(crush_trio, name) for name in shared)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_front_of_a_package_holds_imports_and_no_logic(package):
    allowed = ast.Expr | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
    assert [node for node in tree_of(package) if not isinstance(node, allowed)] == []


def loaded_by(statement):
    """Return the modules that a fresh interpreter has loaded after *statement*."""
    program = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", program]
    return set(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())


HEAVY = {
    *("quart", "quart_trio", "hypercorn", "httpx", "rich", "click", "openai", "anthropic"),
    *("sqlite3", "asyncio", "pytest", "hypothesis"),
}


@pytest.mark.heavy
def test_importing_the_library_loads_no_server_no_database_and_no_test_code():
    loaded = loaded_by("from crush_trio import open_workspace")
    assert "crush_trio.runtime.workspace" in loaded
    assert loaded & HEAVY == set()
    assert [name for name in loaded if name.startswith("crush_trio.testing")] == []


def packages(loaded):
    """Return the packages of *loaded* that are installed, not part of Python."""
    tops = {name.partition(".")[0] for name in loaded}
    return {top for top in tops if top not in sys.stdlib_module_names and not top.startswith("__")}


TRIES = 5

NOT_NEEDED = {"answers", "config", "integrations", "requests", "schema"}
"""Modules of wire values that the run core does without."""


@pytest.mark.heavy
def test_the_run_core_loads_few_packages_and_no_wire_values_that_it_does_not_need():
    """`python -m benchmarks.micro.import_cost` measures the time that this keeps low."""
    loaded = loaded_by("from crush_trio import open_workspace")
    beside = packages(loaded) - packages(loaded_by("import trio"))
    assert beside == {"crush_trio", "cattrs", "orjson", "typing_extensions"}
    assert loaded & {f"crush_trio.wire.{name}" for name in NOT_NEEDED} == set()
    assert len([name for name in loaded if name.startswith("crush_trio")]) <= 45


@pytest.mark.heavy
@pytest.mark.slow
def test_importing_the_run_core_takes_at_most_twice_as_long_as_importing_trio():
    """A busy machine may need several tries."""
    for _ in range(TRIES):
        front, core = import_cost.measure(rounds=3)
        if front.value < 1 and core.value <= import_cost.TARGET:
            return
    pytest.fail(
        f"of the time of Trio: {front.value:.2f} for the front, {core.value:.2f} for the core"
    )


def test_importing_the_front_loads_nothing_else():
    loaded = loaded_by("import crush_trio")
    assert {name for name in loaded if name.startswith("crush_trio")} == {
        "crush_trio",
        "crush_trio._exports",
    }
    assert "trio" not in loaded


@pytest.mark.heavy
def test_schedule_exploration_loads_trio_and_attrs_alone():
    loaded = loaded_by("from crush_trio.testing.explore import explore")
    ours = {name for name in loaded if name.startswith("crush_trio")}
    assert {name for name in ours if not name.startswith("crush_trio.testing.explore")} == {
        "crush_trio",
        "crush_trio._exports",
        "crush_trio.testing",
    }
    assert loaded & {*HEAVY, "cattrs", "orjson", "typing_extensions"} == set()
    trios = loaded_by("import trio")
    extra = {name.partition(".")[0] for name in loaded - trios} - sys.stdlib_module_names
    assert extra == {"crush_trio"}  # Trio brings attrs and outcome


@pytest.mark.heavy
def test_importing_the_harness_needs_no_pytest():
    """Schedules can be explored from a plain script; only the plugin is about pytest."""
    loaded = loaded_by(
        "import sys; sys.modules['pytest'] = None; import crush_trio.testing.server.workspace, "
        "crush_trio.testing.explore"
    )
    assert "crush_trio.testing.explore.explorer" in loaded
    assert loaded & (HEAVY - {"pytest"}) == set()


def test_the_version_is_the_one_the_package_was_built_with():
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")
    assert f'version = "{crush_trio.__version__}"' in project
