"""The place of a server in a cluster: what is refused, and what the refusal says to write."""

import pytest

from crush_trio import ServerSettings, open_server
from crush_trio.cli.exits import explain
from crush_trio.server.settings import AdvertiseInvalid, ClusterSettings


async def test_an_address_for_other_nodes_without_a_shared_store_is_refused():
    """The others would wait for it in vain, and its data would be its own."""
    settings = ServerSettings(cluster=ClusterSettings.of("tcp://10.0.0.5:8765"))
    with pytest.raises(AdvertiseInvalid) as caught:
        async with open_server("tcp://127.0.0.1:0", settings=settings):
            pytest.fail("it was opened")
    assert "set CRUSH_TRIO_STORE" in explain(caught.value)[1]


@pytest.mark.parametrize(
    ("advertise", "ttl", "advice"),
    [
        ("tcp://0.0.0.0:1", 15.0, "name the one of this machine"),
        ("unix:///run/s", 15.0, "write --advertise tcp://HOST:PORT"),
        ("tcp://10.0.0.5", 15.0, "write --advertise tcp://HOST:PORT"),
        ("tcp://10.0.0.5:1", 0.1, "choose 0.5 to 600 seconds"),
    ],
)
def test_what_is_wrong_with_the_place_in_a_cluster_is_said_with_what_to_write(
    advertise, ttl, advice
):
    with pytest.raises(AdvertiseInvalid) as caught:
        ClusterSettings.of(advertise, ttl)
    assert explain(caught.value)[1] == advice
