"""Which addresses may be reached, and from where."""

import pytest

from crush_trio.net.errors import AddressRefused
from crush_trio.tools.web.fetch import Reach

METADATA = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "100.100.100.200",
    "168.63.129.16",
]


def admit(reach, address):
    """Go to *address*, as a connection does."""
    reach.check_address(address)
    reach.connected(address)


@pytest.mark.parametrize("address", METADATA)
def test_metadata_addresses_are_never_reached(address):
    with pytest.raises(AddressRefused, match="link-local or metadata"):
        Reach().check_address(address)
    with pytest.raises(AddressRefused, match="link-local or metadata"):
        Reach().check_name(address)


@pytest.mark.parametrize("name", ["metadata.google.internal", "METADATA.google.internal."])
def test_metadata_names_are_not_even_looked_up(name):
    with pytest.raises(AddressRefused, match="link-local or metadata"):
        Reach().check_name(name)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd12::1"])
def test_private_addresses_can_be_meant_but_no_public_site_leads_there(address):
    own = Reach()
    own.check_name(address)
    admit(own, address)
    admit(own, address)
    led = Reach()
    admit(led, "93.184.215.14")
    with pytest.raises(AddressRefused, match="redirects to the private address"):
        led.check_name(address)
    with pytest.raises(AddressRefused, match="redirects to the private address"):
        led.check_address(address)


def test_way_from_a_private_to_a_public_address_is_open_and_the_way_back_is_not():
    reach = Reach()
    admit(reach, "127.0.0.1")
    admit(reach, "93.184.215.14")
    with pytest.raises(AddressRefused):
        reach.check_address("127.0.0.1")


def test_what_a_proxy_connects_to_counts_as_public():
    reach = Reach()
    reach.connected(None)
    with pytest.raises(AddressRefused):
        reach.check_name("127.0.0.1")


def test_ordinary_names_are_looked_up():
    Reach().check_name("example.org")
