"""Values that the tests of this package share."""

import pytest

from tests.config.homes import Home


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)
