import pytest

from tests.store.stores import OPENINGS


@pytest.fixture(params=OPENINGS)
def openings(request, tmp_path):
    """The implementations of the store, one after the other."""
    return OPENINGS[request.param](tmp_path)
