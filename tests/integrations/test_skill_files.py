"""Skills are found wherever they may be, the strongest is used, and nothing that is found is fatal."""

import os

import pytest

from crush_trio.config.sources import Places, Project
from crush_trio.integrations.skill_files import (
    MAX_DIRECTORIES,
    MAX_FILE_BYTES,
    SkillPlace,
    find_skills,
    user_places,
)
from crush_trio.wire.integrations import SkillLoad, SkillSource
from tests.integrations.skill_files import put_skill

pytestmark = pytest.mark.item("I7")


@pytest.fixture
def home(tmp_path):
    return tmp_path.resolve()


@pytest.fixture
def project(home):
    (home / "project").mkdir()
    return Project(directories=(home / "project",))


def users(path):
    return SkillPlace(path=path, source=SkillSource.USER)


def projects(path, *, confined=True):
    return SkillPlace(path=path, source=SkillSource.PROJECT, confined=confined)


def names(found):
    return [skill.info.name for skill in found.skills]


def errors(found):
    """Return what is wrong, by path."""
    return {state.path: state.error for state in found.states if state.state is SkillLoad.ERROR}


# ── What is found ───────────────────────────────────────────────────────────────────────────────


def test_a_skill_is_a_directory_with_a_file(home, project):
    file = put_skill(home / "skills", "jq", "JSON queries", "user-invocable: true")
    put_skill(home / "skills" / "group", "awk", "Text queries", "disable-model-invocation: true")
    (home / "skills" / "notes.md").write_text("no skill")
    (home / "skills" / "empty").mkdir()
    found = find_skills([users(home / "skills")], project)
    awk, jq = found.skills
    assert (jq.info.id, jq.file, jq.advertised) == (str(file), file, True)
    assert (jq.info.name, jq.info.description) == ("jq", "JSON queries")
    assert (jq.info.label, jq.info.source, jq.info.user_invocable) == ("user:jq", "user", True)
    assert (awk.info.user_invocable, awk.advertised) == (False, False)
    assert {state.path: state.state for state in found.states} == {
        str(file): SkillLoad.OK,
        str(awk.file): SkillLoad.OK,
    }


def test_a_place_that_is_not_there_has_nothing(home, project):
    file = home / "file"
    file.write_text("")
    places = [users(home / "none"), users(file), users(file / "below")]
    assert find_skills(places, project) == find_skills([], project)


def test_a_place_may_be_a_skill_itself(home, project):
    put_skill(home, "jq")
    assert names(find_skills([users(home / "jq")], project)) == ["jq"]


def test_what_lies_within_a_skill_belongs_to_it(home, project):
    put_skill(home / "skills", "outer")
    put_skill(home / "skills" / "outer", "inner")
    assert names(find_skills([users(home / "skills")], project)) == ["outer"]


def test_a_name_that_differs_from_its_directory_is_told_of_unless_only_in_case(home, project):
    file = put_skill(home / "skills", "jq")
    file.parent.rename(home / "skills" / "JQ")
    assert names(find_skills([users(home / "skills")], project)) == ["jq"]
    (home / "skills" / "JQ").rename(home / "skills" / "other")
    found = find_skills([users(home / "skills")], project)
    [state] = found.states
    assert names(found) == ["jq"]
    assert (state.name, state.state, state.error) == ("jq", SkillLoad.OK, "")
    assert state.warning == "name differs from the name of the directory"


def test_links_are_followed_and_lead_nowhere_twice(home, project):
    real = put_skill(home / "elsewhere", "jq")
    skills = home / "skills"
    skills.mkdir()
    (skills / "jq").symlink_to(real.parent)
    (skills / "round").symlink_to(skills)
    (skills / "again").symlink_to(real.parent)
    found = find_skills([users(skills), users(home / "elsewhere")], project)
    [skill] = found.skills
    assert skill.file == real
    assert len(found.states) == 1


def test_a_disabled_skill_is_as_if_it_were_not_there(home, project):
    put_skill(home / "skills", "jq")
    put_skill(home / "skills", "awk")
    found = find_skills([users(home / "skills")], project, ["JQ", "unknown"])
    assert names(found) == ["awk"]
    assert [state.name for state in found.states] == ["awk"]


def test_of_one_name_the_later_is_used(home, project):
    places = []
    for part in ("one", "two"):
        put_skill(home / part, "jq", part)
        places.append(users(home / part))
    put_skill(project.root / "skills", "jq", "trusted project")
    assert find_skills(places, project).skills[0].info.description == "two"
    places.append(projects(project.root / "skills", confined=False))
    found = find_skills(places, project)
    assert [skill.info.description for skill in found.skills] == ["trusted project"]
    assert len(found.states) == 3
    assert errors(found) == {}


# ── What is wrong with it ───────────────────────────────────────────────────────────────────────


def test_a_broken_file_is_a_state_and_no_failure(home, project):
    skills = home / "skills"
    put_skill(skills, "good")
    put_skill(skills, "bad").write_text("---\nname: bad")
    put_skill(skills, "binary").write_bytes(b"---\n\xff\n---\n")
    put_skill(skills, "huge", text="x" * MAX_FILE_BYTES)
    (skills / "gone").mkdir()
    (skills / "gone" / "SKILL.md").symlink_to(home / "nowhere")
    (skills / "directory" / "SKILL.md").mkdir(parents=True)
    (skills / "pipe").mkdir()
    os.mkfifo(skills / "pipe" / "SKILL.md")
    found = find_skills([users(skills)], project)
    assert names(found) == ["good"]
    said = {path.split("/")[-2]: error for path, error in errors(found).items()}
    assert said == {
        "bad": "the second line of three hyphens is missing",
        "binary": "description is missing",
        "directory": "the file cannot be read: it is a directory, not a regular file",
        "gone": "the file is a link to nowhere",
        "huge": f"the file has more than {MAX_FILE_BYTES} bytes",
        "pipe": "the file cannot be read: it is a device or pipe, not a regular file",
    }


def test_a_place_that_cannot_be_a_place_is_a_state(home, project):
    [state] = find_skills([users(home / "a\0b")], project).states
    assert state.error == "not used: no file can have this name"


def test_names_that_are_no_text_can_be_told(home, project):
    put_skill(home / "skills" / os.fsdecode(b"\xff"), "jq")
    [skill] = find_skills([users(home / "skills")], project).skills
    assert "\ufffd" in skill.info.id


def test_a_file_in_utf_16_is_read_and_what_is_no_text_is_not(home, project):
    wide, data = put_skill(home / "skills", "a", "wörds"), put_skill(home / "skills", "b")
    wide.write_bytes(wide.read_text().encode("utf-16"))
    data.write_bytes(b"\0\1\2" + data.read_bytes())
    found = find_skills([users(home / "skills")], project)
    assert [each.info.description for each in found.skills] == ["wörds"]
    assert [each.error for each in found.states] == ["", "the file is not text; save it as UTF-8"]


def test_a_search_comes_to_an_end(home, project):
    for number in range(MAX_DIRECTORIES):
        (home / "skills" / f"{number:04}").mkdir(parents=True)
    put_skill(home / "skills" / "0000", "late")
    found = find_skills([users(home / "skills")], project)
    assert names(found) == []
    assert errors(found) == {
        str(home / "skills"): "not searched to the end: there are more than 1000 directories"
    }


# ── A project that nobody trusts ────────────────────────────────────────────────────────────────


def test_the_skills_of_a_project_are_used(home, project):
    put_skill(project.root / ".agents" / "skills", "jq")
    [skill] = find_skills([projects(project.root / ".agents" / "skills")], project).skills
    assert (skill.info.label, skill.info.source) == ("project:jq", "project")


@pytest.mark.parametrize("link", ["skills", "skills/jq", "skills/jq/SKILL.md"])
@pytest.mark.parametrize("confined", [True, False], ids=["untrusted", "trusted"])
def test_a_project_is_not_followed_out_of_itself(home, project, link, confined):
    secret = put_skill(home / "skills", "jq")
    inside = project.root / link
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.symlink_to(home / link)
    found = find_skills([projects(project.root / "skills", confined=confined)], project)
    if confined:
        assert found.skills == ()
        assert errors(found) == {
            str(inside): "not used: it leads out of a project that is not trusted"
        }
    else:
        assert found.skills[0].file == secret


def test_a_project_does_not_take_the_place_of_what_the_user_has(home, project):
    put_skill(home / "skills", "deploy", "as the user does it")
    theirs = put_skill(project.root / "skills", "deploy", "as the project does it")
    places = [users(home / "skills"), projects(project.root / "skills")]
    found = find_skills(places, project)
    assert [skill.info.description for skill in found.skills] == ["as the user does it"]
    [error] = errors(found).items()
    assert error[0] == str(theirs)
    assert "there is a skill of yours with this name" in error[1]


def test_within_a_project_the_later_is_used_all_the_same(project):
    for part in ("a", "b"):
        put_skill(project.root / part, "jq", part)
    places = [projects(project.root / "a"), projects(project.root / "b")]
    assert find_skills(places, project).skills[0].info.description == "b"


# ── Where the user's are ────────────────────────────────────────────────────────────────────────


def paths(home, **environment):
    places = Places(directory=home, home=home, environment=environment)
    return [str(place.path.relative_to(home)) for place in user_places(places)]


def test_the_skills_of_a_user_are_in_the_usual_places(home):
    assert paths(home) == [
        ".config/crush/skills",
        ".config/agents/skills",
        ".agents/skills",
        ".claude/skills",
    ]
    assert paths(home, XDG_CONFIG_HOME=str(home / "c"))[:2] == ["c/crush/skills", "c/agents/skills"]
    assert paths(home, CRUSH_GLOBAL_CONFIG=str(home / "g"))[0] == "g/skills"


def test_a_variable_names_the_one_place_instead(home):
    assert paths(home, CRUSH_SKILLS_DIR=str(home / "mine")) == ["mine"]
    assert paths(home, CRUSH_SKILLS_DIR="relative") == paths(home)
