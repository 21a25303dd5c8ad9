"""The contributor's files are true: their paths, names, links and targets exist, the workflows fit the project."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import crush_trio

ROOT = Path(__file__).parents[1]
PAGES = ["CONTRIBUTING.md", "SECURITY.md"]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]

QUESTIONS = [
    "Where does a cancel arrive?",
    "Where is a tool's permission decided?",
    "Where are SSE frames made?",
    "Where is a run's ending stored?",
    "Where is the system prompt?",
    "How is a provider's error classified?",
    "Where is the socket opened?",
    "What happens on SIGTERM?",
    "Where are limits set?",
    "Where would a new store go?",
]
MAY_BE_EMPTY = "newsfragments/"
"""A release uses up what is in it."""


def paths_in(text):
    """Return the paths that *text* names in backticks or in a test command."""
    quoted = re.findall(r"`([\w.<>*/-]+)`", text)
    named = {each for each in quoted if re.search(r"/|\.(?:json|md|py|toml|ya?ml)$", each)}
    return sorted(named | set(re.findall(r"pytest (tests/\S+)", text)))


def files_at(path):
    """Return the files at *path*; `<name>` stands for any name."""
    return list(ROOT.glob(re.sub(r"<\w+>", "*", path).rstrip("/")))


def anchors_of(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# ── CONTRIBUTING.md and SECURITY.md ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", paths_in(CONTRIBUTING))
def test_a_path_that_contributing_names_exists(path):
    assert files_at(path) or path.startswith(MAY_BE_EMPTY)


def test_the_ten_questions_are_answered_with_files():
    rows = CONTRIBUTING.partition("## Where is …?")[2]
    answers = dict(re.findall(r"^\| (\w.+\?) \| (.+) \|$", rows, re.MULTILINE))
    assert list(answers) == QUESTIONS
    for question, answer in answers.items():
        assert [path for path in paths_in(answer) if files_at(path)], question


@pytest.mark.parametrize(
    ("path", "name"), re.findall(r"`([\w/]+\.py)` \(`([\w.]+)`\)", CONTRIBUTING)
)
def test_a_name_that_contributing_gives_is_defined_in_its_file(path, name):
    source = (ROOT / path).read_text("utf-8")
    for part in name.split("."):
        assert re.search(rf"\b(?:class|def) {part}\b", source)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", (ROOT / page).read_text("utf-8"))
    assert links
    for target, anchor in links:
        assert (ROOT / target).exists(), target
        assert not anchor or anchor in anchors_of(ROOT / target), f"{target}#{anchor}"


@pytest.mark.parametrize(
    "target", sorted(set(re.findall(r"(?:^|`)make ([a-z]+)", CONTRIBUTING, re.MULTILINE)))
)
def test_a_make_target_that_contributing_names_exists(target):
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


# ── Workflows, templates, hooks ─────────────────────────────────────────────────────────────────


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))


def commands_of(job):
    return "\n".join(step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name
)
def test_a_file_for_the_forge_is_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text("utf-8")), dict)


def test_ci_runs_the_projects_own_check_on_every_python_of_the_classifiers():
    job = workflow("ci.yml")["jobs"]["check"]
    classified = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert job["strategy"]["matrix"]["python"] == classified
    assert PROJECT["requires-python"] == f">={classified[0]}"
    assert ".ci/run" in commands_of(job)


def test_a_release_is_tested_built_and_installed_before_it_is_published():
    jobs = workflow("release.yml")["jobs"]
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    assert "make build" in commands_of(jobs["build"])
    assert "crush-trio --version" in commands_of(jobs["build"])
    assert set(jobs["publish"]["needs"]) == {"check", "build"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}


def test_the_hooks_are_local_and_lint_as_make_does():
    [local] = HOOKS
    assert local["repo"] == "local"
    programs = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in local["hooks"]}
    assert all(f"$(BIN)/{program}" in MAKEFILE for program in programs)
    enabled = {
        re.search(r"--enable (\S+)", text)[1]
        for text in (MAKEFILE, *(hook["entry"] for hook in local["hooks"]))
        if "--enable" in text
    }
    assert len(enabled) == 1


# ── Version ─────────────────────────────────────────────────────────────────────────────────────


def test_the_version_is_the_same_everywhere_and_has_its_section_in_the_changelog():
    assert PROJECT["version"] == crush_trio.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## {re.escape(crush_trio.__version__)}(?: |$)", changelog, re.MULTILINE)
