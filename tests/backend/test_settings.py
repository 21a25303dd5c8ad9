"""The overrides from the environment, and what clients ask of a workspace."""

import pytest

from crush_trio.backend.settings import BackendSettings, Graces, Terms
from crush_trio.errors import PathInvalid
from crush_trio.wire.requests import WorkspaceRequest

DEFAULT = BackendSettings()


@pytest.mark.item("E10", "E19")
def test_whole_seconds_override_the_defaults():
    settings = BackendSettings.from_environment(
        {"CRUSH_SERVER_DETACH_GRACE": "3", "CRUSH_SERVER_IDLE_TIMEOUT": "+120", "OTHER": "1"}
    )
    assert settings == BackendSettings(detach_grace=3.0, idle_linger=120.0)
    assert settings.graces == Graces(create=30.0, detach=3.0)


def test_zero_is_a_value():
    settings = BackendSettings.from_environment(
        {"CRUSH_SERVER_DETACH_GRACE": "0", "CRUSH_SERVER_IDLE_TIMEOUT": "0"}
    )
    assert (settings.detach_grace, settings.idle_linger) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "10s", " 5", "5 ", "1_0", "٣", "nan", "9" * 400])
def test_anything_else_counts_as_absent(text):
    environment = dict.fromkeys(("CRUSH_SERVER_DETACH_GRACE", "CRUSH_SERVER_IDLE_TIMEOUT"), text)
    assert BackendSettings.from_environment(environment) == DEFAULT


def test_without_overrides_the_defaults_hold():
    assert BackendSettings.from_environment({}) == DEFAULT
    assert (DEFAULT.create_grace, DEFAULT.detach_grace, DEFAULT.idle_linger) == (30.0, 10.0, 60.0)


def test_what_is_no_variable_is_no_part_of_the_environment():
    env = ("A=1", "B=", "C==", "none", "", "=name", "N=a\0b", "N\0=a", "CRUSH_TRIO_TOKEN=t")
    env += ("CRUSH_TRIO_HOST=tcp://h:1", "CRUSH_TRIO_STORE=postgresql://u:p@h/d")
    assert Terms(env=env).environment == {"A": "1", "B": "", "C": "="}


def test_a_data_directory_that_no_path_can_name_is_refused():
    with pytest.raises(PathInvalid, match="data_dir has a null character"):
        Terms.of(WorkspaceRequest(path="/w", client_id="", data_dir="a\0b"))
