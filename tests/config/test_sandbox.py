"""`crush_trio.sandbox`: who may set it, how files are merged, and what is refused."""

import pytest

from crush_trio.config import ConfigInvalid, ConfigWarningKind
from crush_trio.config.files import CommandPolicy, SandboxConfig, SandboxMode, SandboxNetwork


def own(**sandbox):
    return {"crush_trio": {"sandbox": sandbox}}


async def test_the_default_is_a_sandbox_with_network_that_asks(home):
    loaded = await home.load()
    assert loaded.sandbox == SandboxConfig(
        mode=SandboxMode.AUTO, network=SandboxNetwork.ON, commands=CommandPolicy.ASK
    )


async def test_the_users_files_are_merged_key_by_key_and_null_restores_the_default(home):
    home.write(home.system_file, own(mode="require", network="off", hidden=["/srv/keys"]))
    home.write(home.user_file, own(network=None, writable=["~/build"], hidden=["~/keys"]))
    home.write(home.data_file, own(commands="allow"))
    assert (await home.load()).sandbox == SandboxConfig(
        mode=SandboxMode.REQUIRE,
        commands=CommandPolicy.ALLOW,
        writable=("~/build",),
        hidden=("~/keys",),
    )


@pytest.mark.parametrize("where", ["project_file", "workspace_file"])
async def test_a_project_cannot_open_the_sandbox_even_if_it_is_trusted(home, where):
    file = home.write(getattr(home, where), own(mode="off", commands="allow", writable=["/etc"]))
    home.trust()
    loaded = await home.load()
    assert loaded.sandbox == SandboxConfig()
    [warning] = [w for w in loaded.warnings if w.kind is ConfigWarningKind.NOT_TRUSTED]
    assert str(warning).startswith(f"{file}: crush_trio: ignored: only the user's own files")


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        ({"mode": "on"}, "mode: unknown value 'on'; expected auto, require, off"),
        ({"network": "lan"}, "network: unknown value 'lan'; expected on, off, loopback"),
        ({"commands": "never"}, "commands: unknown value 'never'; expected ask, allow"),
        ({"mode": True}, "mode: expected a string, got a boolean"),
        ({"writable": "/srv"}, "writable: expected a list, got a string"),
        ({"writable": ["/srv", "build"]}, "writable[1]: expected a path that begins with / or ~/"),
        ({"hidden": ["~other/keys"]}, "hidden[0]: expected a path that begins with / or ~/"),
        ({"writable": ["/"]}, "writable[0]: expected a part of the file system"),
        ({"hidden": ["~/"]}, "hidden[0]: expected a part of the file system"),
        ({"writable": ["/srv/../.."]}, "writable[0]: expected a path without '..'"),
    ],
)
async def test_a_value_that_cannot_work_is_refused_with_its_key(home, sandbox, said):
    file = home.write(home.user_file, own(**sandbox))
    with pytest.raises(ConfigInvalid) as caught:
        await home.load()
    assert f"{file}: crush_trio.sandbox.{said}" in str(caught.value)


async def test_an_unknown_key_is_a_warning(home):
    home.write(home.user_file, own(moat=True))
    [warning] = [w for w in (await home.load()).warnings if w.key.startswith("crush_trio")]
    assert warning.key == "crush_trio.sandbox.moat"
