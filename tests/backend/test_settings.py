"""The overrides from the environment."""

import pytest

from crush_trio.backend.settings import BackendSettings, Graces

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
