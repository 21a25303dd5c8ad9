"""Which addresses may be reached, and from where."""

import pytest

from crush_trio.tools.base import ToolError
from crush_trio.tools.web.http import Reach

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


@pytest.mark.parametrize("address", METADATA)
def test_metadata_addresses_are_never_reached(address):
    with pytest.raises(ToolError, match="link-local or metadata"):
        Reach().admit(address)
    with pytest.raises(ToolError, match="link-local or metadata"):
        Reach().judge_name(address)


@pytest.mark.parametrize("name", ["metadata.google.internal", "METADATA.google.internal."])
def test_metadata_names_are_not_even_looked_up(name):
    with pytest.raises(ToolError, match="link-local or metadata"):
        Reach().judge_name(name)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd12::1"])
def test_private_addresses_can_be_meant_but_no_public_site_leads_there(address):
    own = Reach()
    own.judge_name(address)
    own.admit(address)
    own.admit(address)
    led = Reach()
    led.admit("93.184.215.14")
    with pytest.raises(ToolError, match="redirects to the private address"):
        led.judge_name(address)
    with pytest.raises(ToolError, match="redirects to the private address"):
        led.admit(address)


def test_way_from_a_private_to_a_public_address_is_open_and_the_way_back_is_not():
    reach = Reach()
    reach.admit("127.0.0.1")
    reach.admit("93.184.215.14")
    with pytest.raises(ToolError):
        reach.admit("127.0.0.1")


def test_ordinary_names_are_looked_up():
    Reach().judge_name("example.org")
