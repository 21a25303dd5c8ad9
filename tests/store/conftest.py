import pytest

from tests.store.stores import CLUSTERS, OPENINGS

KINDS = [
    pytest.param(name, marks=[pytest.mark.slow] if name == "postgres" else []) for name in OPENINGS
]


@pytest.fixture(params=KINDS)
def openings(request, tmp_path):
    """The implementations of the store, one after the other."""
    return OPENINGS[request.param](tmp_path)


@pytest.fixture(
    params=["memory", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.real_clock])]
)
def cluster(request):
    """The implementations of what nodes share, one after the other."""
    return CLUSTERS[request.param]()
