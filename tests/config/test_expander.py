"""Templates filled in for a workspace, with regard to who wrote them."""

import attrs
import pytest
import trio

from crush_trio.config import CommandFailed, ConfigWarningKind, ExpansionFailed, NotConfigured
from tests.config.homes import SECRET, custom, texts


class Runner:
    """Runs nothing, remembers what it was asked to run, and answers from a table."""

    def __init__(self, **outputs):
        self.outputs = outputs
        self.asked = []

    async def __call__(self, command, environment, directory):
        await trio.lowlevel.checkpoint()
        self.asked.append((command, environment, directory))
        output = self.outputs.get(command)
        if output is None:
            raise CommandFailed("exit status 1")
        return output

    @property
    def commands(self):
        return [command for command, *_ in self.asked]


def provider(**entry):
    return {"providers": {"x": custom(**entry)}}


# ── Which values are templates ──────────────────────────────────────────────────────────────────


async def test_a_provider_is_resolved_when_it_is_asked_for(home):
    home.environment.update(KEY="k", HOST="h", REGION="")
    home.write(
        home.user_file,
        provider(
            api_key="$KEY",
            base_url="https://$HOST/v1",
            extra_headers={"x-key": "k=$KEY", "x-region": "$REGION"},
            extra_body={"template": "$KEY"},
        ),
    )
    loaded = await home.load()
    assert loaded.config.providers["x"].api_key == "$KEY"
    resolved = await loaded.resolve_provider("x")
    assert resolved.config.api_key == "k"
    assert resolved.config.base_url == "https://h/v1"
    assert resolved.config.extra_headers == {"x-key": "k=k"}, "an empty header is left out"
    assert resolved.config.extra_body == {"template": "$KEY"}, "never expanded"


async def test_an_mcp_server_is_resolved(home):
    home.environment.update(V="v", EMPTY="")
    entry = {
        "command": "run-$V",
        "args": ["--key", "$V"],
        "env": {"A": "$V", "B": "$EMPTY"},
        "url": "http://$V",
        "headers": {"h": "$V", "gone": "$EMPTY"},
        "oauth_client_id": "$V",
        "oauth_client_secret": "$V",
    }
    home.write(home.user_file, {"mcp": {"m": entry}})
    server = (await (await home.load()).resolve_mcp("m")).config
    assert (server.command, server.args, server.url) == ("run-v", ("--key", "v"), "http://v")
    assert server.env == {"A": "v", "B": ""}
    assert server.headers == {"h": "v"}
    assert (server.oauth_client_id, server.oauth_client_secret) == ("v", "v")


async def test_a_language_server_is_resolved_but_its_command_is_literal(home):
    home.environment["V"] = "v"
    entry = {"command": "$V", "args": ["$V"], "env": {"A": "$V"}, "init_options": {"k": "$V"}}
    home.write(home.user_file, {"lsp": {"l": entry}})
    server = (await (await home.load()).resolve_lsp("l")).config
    assert (server.command, server.args, server.env) == ("$V", ("v",), {"A": "v"})
    assert server.init_options == {"k": "$V"}


@pytest.mark.parametrize("what", ["provider", "mcp", "lsp"])
async def test_what_is_not_configured_cannot_be_resolved(home, what):
    loaded = await home.load()
    with pytest.raises(NotConfigured, match="'nobody'"):
        await getattr(loaded, f"resolve_{what}")("nobody")


async def test_a_resolved_entry_shows_nothing(home):
    home.environment["KEY"] = SECRET
    home.write(home.user_file, {"mcp": {"m": {"args": ["$KEY"], "url": "http://$KEY"}}})
    assert SECRET not in repr(await (await home.load()).resolve_mcp("m"))


async def test_paths_that_begin_with_a_dollar_sign_are_expanded(home):
    home.environment["DOCS"] = "/docs"
    paths = ["$DOCS/a", "b$DOCS", "~/c", "$NOTHING"]
    home.write(home.user_file, {"options": {"skills_paths": paths}})
    found = await (await home.load()).skills_paths()
    assert [each.path for each in found] == [
        *(home.root / "/docs/a", home.project / "b$DOCS", home.home / "c"),
    ]
    assert not any(each.confined for each in found)


# ── Commands and trust ──────────────────────────────────────────────────────────────────────────


async def test_a_command_of_the_users_is_run_in_the_workspace_each_time(home):
    home.environment["A"] = "1"
    home.write(home.user_file, provider(api_key="$(pass)"))
    run = Runner(**{"pass": "key\n"})
    loaded = await home.load(run_command=run)
    assert run.asked == [], "loading does not need the key"
    assert (await loaded.resolve_provider("x")).config.api_key == "key"
    assert (await loaded.resolve_provider("x")).config.api_key == "key"
    assert run.asked == [("pass", {"A": "1"}, home.project)] * 2


@pytest.mark.parametrize("where", ["project_file", "workspace_file"])
async def test_a_command_that_came_with_the_project_is_not_run(home, where):
    file = home.write(getattr(home, where), {"mcp": {"x": {"command": "$(evil)"}}})
    run = Runner(evil="x")
    loaded = await home.load(run_command=run)
    with pytest.raises(ExpansionFailed) as caught:
        await loaded.resolve_mcp("x")
    assert run.asked == []
    text = caught.value.detail
    assert text.startswith(f"{file}: mcp.x.command: $(evil): not run")
    assert text.endswith(f"to trust it: crush-trio trust {file.parent}")
    [warning] = texts(loaded, ConfigWarningKind.NOT_TRUSTED)
    assert warning == text


@pytest.mark.parametrize("where", ["user_file", "data_file", "system_file"])
async def test_the_user_can_trust_a_directory_in_any_file_of_their_own(home, where):
    home.write(getattr(home, where), {"crush_trio": {"trusted_directories": [str(home.root)]}})
    home.write(home.project_file, provider(api_key="$(fine)"))
    loaded = await home.load(run_command=Runner(fine="key"))
    assert (await loaded.resolve_provider("x")).config.api_key == "key"
    assert loaded.may_run("providers", "x")
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == []


async def test_trust_is_written_with_a_tilde_or_through_a_link_too(home):
    (home.home).mkdir()
    (home.home / "link").symlink_to(home.project)
    home.write(home.user_file, {"crush_trio": {"trusted_directories": ["~/link", "relative"]}})
    home.write(home.project_file, provider(api_key="$(fine)"))
    loaded = await home.load(run_command=Runner(fine="key"))
    assert (await loaded.resolve_provider("x")).config.api_key == "key"


async def test_one_untrusted_say_is_enough_to_take_the_trust_from_an_entry(home):
    home.write(home.user_file, {"mcp": {"m": {"command": "a"}, "n": {"command": "b"}}})
    home.write(home.project_file, {"mcp": {"m": {"args": ["--evil"]}}})
    loaded = await home.load()
    assert not loaded.may_run("mcp", "m")
    assert loaded.may_run("mcp", "n")
    assert loaded.origin("mcp", "m").path == home.project_file
    assert loaded.origin("mcp", "m", "command").path == home.user_file


async def test_without_a_runner_a_command_is_an_error_that_says_so(home):
    home.write(home.user_file, provider(api_key="$(pass)"))
    loaded = await home.load()
    with pytest.raises(ExpansionFailed, match="commands are not available here"):
        await loaded.resolve_provider("x")


async def test_a_failed_command_is_an_error_with_the_template_only(home):
    home.environment["TOKEN"] = SECRET
    home.write(home.user_file, provider(api_key=f"{SECRET}-$TOKEN-$(false $TOKEN)"))
    loaded = await home.load(run_command=Runner())
    with pytest.raises(ExpansionFailed) as caught:
        await loaded.resolve_provider("x")
    assert caught.value.detail == (
        f"{home.user_file}: providers.x.api_key: $(false $TOKEN): exit status 1"
    )


async def test_a_command_has_five_minutes(home, autojump_clock):
    async def hang(_command, _environment, _directory):
        await trio.sleep_forever()

    home.write(home.user_file, provider(api_key="$(sleep inf)"))
    loaded = await home.load(run_command=hang)
    begin = trio.current_time()
    with pytest.raises(ExpansionFailed, match="within 300 seconds"):
        await loaded.resolve_provider("x")
    assert trio.current_time() - begin == 300


async def test_cancelling_the_one_who_asks_cancels_the_command(home):
    ended = []

    async def hang(command, _environment, _directory):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(command)

    home.write(home.user_file, provider(api_key="$(slow)"))
    loaded = await home.load(run_command=hang)
    with trio.move_on_after(1) as scope:
        await loaded.resolve_provider("x")
    assert scope.cancelled_caught
    assert ended == ["slow"]


async def test_a_broken_template_is_foreseen_and_fails_when_it_is_used(home):
    home.write(home.user_file, provider(api_key="50$"))
    loaded = await home.load()
    [warning] = texts(loaded, ConfigWarningKind.NOT_EXPANDED)
    assert warning.startswith(f"{home.user_file}: providers.x.api_key: a lone $")
    with pytest.raises(ExpansionFailed, match="a lone"):
        await loaded.resolve_provider("x")


# ── The environment of a workspace ──────────────────────────────────────────────────────────────


async def test_env_is_expanded_once_at_load_and_exported_nowhere(home):
    home.environment.update(BASE="b", PATH="/bin")
    env = {"A": "$BASE/x", "PATH": "/own:$PATH", "B": "$A", "C": "$(now)"}
    home.write(home.user_file, {"env": env})
    run = Runner(now="12")
    loaded = await home.load(run_command=run)
    assert loaded.env == {"A": "b/x", "PATH": "/own:/bin", "B": "", "C": "12"}
    assert loaded.environment == {"BASE": "b", **loaded.env}
    assert home.environment == {"BASE": "b", "PATH": "/bin"}
    assert run.commands == ["now"]


async def test_a_variable_without_a_value_is_left_out_with_a_notice(home):
    home.write(home.user_file, {"env": {"A": "${NO:?say please}", "B": "$(fails)", "C": "c"}})
    loaded = await home.load(run_command=Runner())
    assert loaded.env == {"C": "c"}
    first, second = texts(loaded, ConfigWarningKind.NOT_EXPANDED)
    assert first == f"{home.user_file}: env.A: ${{NO:?}}: say please"
    assert second == f"{home.user_file}: env.B: $(fails): exit status 1"


async def test_templates_see_the_variables_that_env_sets(home):
    home.write(home.user_file, {"env": {"KEY": "from-env"}, **provider(api_key="$KEY")})
    assert (await (await home.load()).resolve_provider("x")).config.api_key == "from-env"


@pytest.mark.parametrize(
    ("entry", "key", "piece"),
    [
        ({"command": "$TOKEN"}, "command", "${TOKEN}"),
        ({"command": "${NO:-$TOKEN}"}, "command", "${NO:-${TOKEN}}"),
        ({"url": "http://evil/$TOKEN"}, "url", "${TOKEN}"),
        ({"headers": {"x": "a $TOKEN"}}, "headers.x", "${TOKEN}"),
    ],
)
async def test_a_project_cannot_have_the_users_variables_sent(home, entry, key, piece):
    home.environment["TOKEN"] = SECRET
    home.write(home.project_file, {"mcp": {"x": entry}})
    loaded = await home.load()
    with pytest.raises(ExpansionFailed) as caught:
        await loaded.resolve_mcp("x")
    assert caught.value.detail == (
        f"{home.project_file}: mcp.x.{key}: {piece}: not read, because the file came with the "
        f"project; to trust it: crush-trio trust {home.project}"
    )
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == [caught.value.detail]
    home.trust()
    trusted = (await (await home.load()).resolve_mcp("x")).config
    assert SECRET in str(attrs.asdict(trusted))


@pytest.mark.parametrize("section", ["mcp", "lsp"])
async def test_nor_can_it_hand_them_to_a_server(home, section):
    home.environment["TOKEN"] = SECRET
    home.write(home.project_file, {section: {"s": {"command": "x", "args": ["--key", "$TOKEN"]}}})
    loaded = await home.load()
    with pytest.raises(ExpansionFailed, match=r"args\[1\]: \$\{TOKEN\}: not read, because"):
        await getattr(loaded, f"resolve_{section}")("s")


async def test_the_paths_of_a_project_may_name_variables_but_no_commands(home):
    home.environment["DOCS"] = "docs"
    home.write(home.project_file, {"options": {"skills_paths": ["$DOCS/a"]}})
    loaded = await home.load()
    [found] = await loaded.skills_paths()
    assert (found.path, found.confined) == (home.project / "docs" / "a", True)
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED) == []
    home.write(home.project_file, {"options": {"skills_paths": ["${DOCS:-$(evil)}"]}})
    with pytest.raises(ExpansionFailed, match=r"\$\(evil\): not run"):
        await (await home.load()).skills_paths()
