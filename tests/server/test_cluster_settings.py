"""The place of a server in a cluster: what is refused, and what the refusal says to write."""

import pytest

from crush_trio import ServerSettings, open_server
from crush_trio.cli.exits import explain
from crush_trio.server.settings import AdvertiseInvalid, ClusterSettings, LeaseTtlInvalid


async def test_an_address_for_other_nodes_without_a_shared_store_is_refused():
    """The others would wait for it in vain, and its data would be its own."""
    settings = ServerSettings(cluster=ClusterSettings.of("tcp://10.0.0.5:8765"))
    with pytest.raises(AdvertiseInvalid) as caught:
        async with open_server("tcp://127.0.0.1:0", settings=settings):
            pytest.fail("it was opened")
    assert "set CRUSH_TRIO_STORE" in explain(caught.value)[1]


@pytest.mark.parametrize(
    ("advertise", "advice"),
    [
        ("tcp://0.0.0.0:1", "name the one of this machine"),
        ("unix:///run/s", "write --advertise tcp://HOST:PORT"),
        ("tcp://10.0.0.5", "write --advertise tcp://HOST:PORT"),
    ],
)
def test_what_is_wrong_with_the_place_in_a_cluster_is_said_with_what_to_write(advertise, advice):
    with pytest.raises(AdvertiseInvalid) as caught:
        ClusterSettings.of(advertise)
    assert explain(caught.value)[1] == advice


def test_leases_that_are_too_short_are_refused_with_the_option_to_correct():
    with pytest.raises(LeaseTtlInvalid, match=r"not between 0\.5 and 600") as caught:
        ClusterSettings.of("tcp://10.0.0.5:1", 0.1)
    assert "--lease-ttl" in explain(caught.value)[1]
