"""From files to a snapshot."""

import errno
import os
from pathlib import Path

import pytest

from crush_trio import nofollow
from crush_trio.config import ConfigInvalid, ConfigWarningKind, SourceKind
from crush_trio.config.checks import chosen_limits
from crush_trio.config.files import FILE_LIMIT, NotifyEvent
from tests.config.homes import SECRET, custom, texts


def options(**values):
    return {"options": values}


# ── Order ───────────────────────────────────────────────────────────────────────────────────────


async def test_without_any_file_there_is_a_configuration_all_the_same(home):
    loaded = await home.load()
    assert loaded.revision == 1
    assert loaded.sources == ()
    assert loaded.data_dir == home.project / ".crush"
    assert loaded.config.providers.keys() == {"demo"}


async def test_a_later_file_wins_and_what_it_does_not_say_stays(home):
    sub = home.project / "sub"
    paths = [
        (home.system_file, SourceKind.SYSTEM),
        (home.user_file, SourceKind.USER),
        (home.data_file, SourceKind.DATA),
        (home.project / "crush.json", SourceKind.PROJECT),
        (home.project / ".crush.json", SourceKind.PROJECT),
        (sub / "crush.json", SourceKind.PROJECT),
        (sub / ".crush.json", SourceKind.PROJECT),
        (sub / ".crush" / "crush.json", SourceKind.WORKSPACE),
        (home.places(sub).workspace_file, SourceKind.USER_WORKSPACE),
    ]
    trust = {"crush_trio": {"trusted_directories": [str(home.project)]}}
    for number, (path, _) in enumerate(paths):
        more = {} if number else trust
        home.write(path, {"env": {f"V{number}": "x", "LAST": str(number)}, **more})
    loaded = await home.load(sub)
    assert [(source.path, source.kind) for source in loaded.sources] == paths
    assert loaded.env == {**{f"V{number}": "x" for number in range(9)}, "LAST": "8"}


async def test_a_file_above_the_work_tree_says_nothing(home):
    home.trust(home.root)
    home.write(home.root / "crush.json", {"env": {"ABOVE": "1"}})
    assert (await home.load()).env == {}


async def test_lists_are_replaced_and_null_puts_the_default_back(home):
    home.write(home.user_file, options(disabled_tools=["a", "b"], debug=True))
    home.write(home.project_file, options(disabled_tools=["c"], debug=None))
    home.trust()
    loaded = await home.load()
    assert loaded.config.options.disabled_tools == ("c",)
    assert loaded.config.options.debug is False


async def test_an_entry_that_is_null_is_taken_away(home):
    home.write(home.user_file, {"env": {"X": "1"}, "providers": {"p": custom()}})
    home.write(home.project_file, {"env": {"X": None}, "providers": {"p": None}})
    home.trust()
    loaded = await home.load()
    assert loaded.env == {}
    assert loaded.config.providers.keys() == {"demo"}


async def test_a_file_that_is_both_the_users_and_in_the_workspace_is_the_users(home):
    home.write(home.user_file, {"env": {"X": "1"}})
    loaded = await home.load(home.user_file.parent)
    assert [source.kind for source in loaded.sources] == [SourceKind.USER]


async def test_the_data_directory_can_be_configured_and_its_file_is_read(home):
    home.write(home.user_file, options(data_directory="kept"))
    home.write(home.project / "kept" / "crush.json", options(debug=True))
    loaded = await home.load()
    assert loaded.data_dir == home.project / "kept"
    assert loaded.config.options.debug


async def test_a_project_that_wants_its_data_elsewhere_is_not_obeyed(home):
    home.write(home.project_file, options(data_directory="/elsewhere"))
    loaded = await home.load()
    assert loaded.data_dir == home.project / ".crush"
    [warning] = texts(loaded, ConfigWarningKind.NOT_TRUSTED)
    assert warning.startswith(f"{home.project_file}: options.data_directory: ")


async def test_a_data_directory_that_is_a_link_out_of_the_project_is_not_followed(home):
    sub = home.project / "sub"
    sub.mkdir()
    (home.root / "outside").mkdir()
    (home.project / ".crush").symlink_to("../outside")
    loaded = await home.load(sub)
    assert loaded.data_dir == sub / ".crush"
    [warning] = texts(loaded, ConfigWarningKind.NOT_TRUSTED)
    assert warning.startswith(f"{home.project / '.crush'}: ignored: ")
    home.trust()
    assert (await home.load(sub)).data_dir == home.project / ".crush"


@pytest.mark.parametrize("dangling", [False, True])
async def test_where_only_such_a_link_is_left_the_workspace_is_refused(home, dangling):
    if not dangling:
        (home.root / "outside").mkdir()
    (home.project / ".crush").symlink_to("../outside")
    with pytest.raises(ConfigInvalid, match=r"\.crush: expected a directory within the project"):
        await home.load()
    home.write(home.user_file, options(data_directory="kept"))
    assert (await home.load()).data_dir == home.project / "kept"


@pytest.fixture
def private(home, monkeypatch):
    """Refuse to look into a directory, as for another user's; root could always."""
    place = home.root / "private"
    stat, opened = Path.stat, nofollow.open_path

    def refuse(path):
        if os.path.realpath(path).startswith(str(place)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def refusing_stat(path, **options):
        refuse(path)
        return stat(path, **options)

    def refusing_open(path, *args, **options):
        refuse(path)
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "stat", refusing_stat)
    monkeypatch.setattr(nofollow, "open_path", refusing_open)
    return place


async def test_a_data_directory_that_is_a_link_to_a_private_place_is_a_configuration_error(
    home, private
):
    (home.project / ".crush").symlink_to(private / "x")
    with pytest.raises(ConfigInvalid, match=r"\.crush: expected a directory within the project"):
        await home.load()
    home.trust()
    with pytest.raises(ConfigInvalid) as refused:
        await home.load()
    assert refused.value.detail == (
        f"{home.workspace_file}: cannot be read: Permission denied; allow reading it, or move it away"
    )


# ── What is wrong ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "line 1 column 2: "),
        ("", "line 1 column 1: "),
        ("[]", "expected an object"),
        ('{"options": []}', "options: expected an object, got a list"),
        ('{"options": {"debug": "yes"}}', "options.debug: expected a boolean, got a string"),
        ('{"mcp": []}', "mcp: expected an object, got a list"),
    ],
)
async def test_a_broken_file_is_one_error_that_names_it_and_the_place(home, content, complaint):
    home.write(home.user_file, {"env": {"FINE": "1"}})
    home.write(home.project_file, content)
    with pytest.raises(ConfigInvalid) as caught:
        await home.load()
    assert str(caught.value).startswith(f"invalid configuration: {home.project_file}: {complaint}")
    assert caught.value.code == "config_invalid"


@pytest.mark.parametrize(
    ("section", "entry", "problem"),
    [
        ("providers", {"limits": [1]}, "limits: expected an object, got a list"),
        ("providers", {"models": [{"context_window": "8k"}]}, "models[0].context_window: expected"),
        ("providers", {"api_key": 5}, "api_key: expected a string, got an integer"),
        ("providers", [], " expected an object, got a list"),
        ("mcp", {"type": "carrier pigeon"}, "type: unknown value"),
        ("mcp", {"command": "x", "args": "y"}, "args: expected a list"),
        ("lsp", {"command": "x", "timeout": "long"}, "timeout: expected an integer"),
    ],
)
async def test_one_malformed_entry_is_left_out_with_a_warning_and_the_others_stay(
    home, section, entry, problem
):
    fine = {"providers": custom(), "mcp": {"command": "x"}, "lsp": {"command": "x"}}[section]
    home.write(home.user_file, {section: {"my.own": entry, "fine": fine}})
    loaded = await home.load()
    assert "fine" in getattr(loaded.config, section)
    assert "my.own" not in getattr(loaded.config, section)
    kind = "provider_skipped" if section == "providers" else "not_used"
    [warning] = texts(loaded, ConfigWarningKind(kind))
    separator = ":" if problem.startswith(" ") else "."
    assert warning.startswith(f"{home.user_file}: {section}['my.own']{separator}{problem}")
    assert chosen_limits({"HOME": str(home.home)}), "the server starts, too"


async def test_a_file_that_is_a_link_out_of_an_untrusted_project_is_not_read(home):
    outside = home.write(home.root / "outside.json", {"options": {"debug": True}})
    home.project_file.symlink_to(outside)
    loaded = await home.load()
    assert not loaded.config.options.debug
    [warning] = texts(loaded, ConfigWarningKind.NOT_TRUSTED)
    assert warning.startswith(f"{home.project_file}: ignored: it is a link out of a project")
    home.trust()
    assert (await home.load()).config.options.debug


async def test_a_file_that_is_a_link_within_the_project_or_of_the_user_is_read(home):
    home.write(home.project / "etc" / "c.json", {"options": {"debug": True}})
    home.project_file.symlink_to("etc/c.json")
    dots = home.write(home.root / "dots" / "crush.json", {"options": {"debug_lsp": True}})
    home.user_file.parent.mkdir(parents=True)
    home.user_file.symlink_to(dots)
    options = (await home.load()).config.options
    assert (options.debug, options.debug_lsp) == (True, True)


async def test_a_file_that_cannot_be_read_is_such_an_error_too(home):
    home.project_file.mkdir()
    await home.load()  # a name that a sandbox reserves is no file
    (home.project_file / "x").touch()
    with pytest.raises(
        ConfigInvalid, match=r"crush\.json: cannot be read: it is a [a-z ]+, not a regular"
    ):
        await home.load()
    (home.project_file / "x").unlink()
    home.project_file.rmdir()
    os.mkfifo(home.project_file)
    with pytest.raises(ConfigInvalid, match=r"cannot be read: it is a [a-z ]+, not a regular file"):
        await home.load()


async def test_a_file_may_be_large_but_not_without_limit(home):
    home.write(home.project_file, '{"$schema": "%s"}' % ("x" * FILE_LIMIT))
    with pytest.raises(ConfigInvalid, match=f"at most {FILE_LIMIT} bytes"):
        await home.load()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"hooks": {"PreToolUse": [{"command": " "}]}}, "hooks.PreToolUse[0].command: expected"),
        (
            {"hooks": {"PreToolUse": [{"command": "x", "matcher": "("}]}},
            "hooks.PreToolUse[0].matcher: expected a regular expression",
        ),
    ],
)  # fmt: skip
async def test_what_cannot_be_meant_is_an_error_of_the_same_form(home, content, complaint):
    home.write(home.project_file, content)
    await home.load()  # an untrusted file cannot keep the workspace from being opened
    home.trust()
    with pytest.raises(ConfigInvalid) as caught:
        await home.load()
    assert caught.value.detail.startswith(f"{home.project_file}: {complaint}")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (custom(type="abacus"), "type: expected one of anthropic,"),
        (custom(type="bedrock"), "type: bedrock is not supported; use type anthropic with"),
        ({}, "base_url: expected the address"),
        ({"base_url": "u"}, "models: expected the models"),
        (custom(models=[{}]), "models[0].id: expected the id"),
        (custom(limits={"first": 0}), "limits.first: expected a number of seconds above 0"),
        (custom(limits={"patience": 5}), "limits.patience: expected one of connect, first,"),
    ],
)
async def test_a_provider_that_is_not_complete_is_left_out_and_the_others_work(
    home, entry, complaint
):
    home.write(home.user_file, {"providers": {"x": entry, "y": custom()}})
    loaded = await home.load()
    assert loaded.config.providers.keys() == {"y"}
    [warning] = loaded.warnings
    assert warning.kind == "provider_skipped"
    assert str(warning).startswith(f"{home.user_file}: providers.x.{complaint}")
    assert str(warning).endswith("; until then the provider is not used")


@pytest.mark.parametrize(
    "address",
    ["host/v1", "https:/host/v1", "ftp://host", "http://host:port", "http://my host", "http://[h"],
)
async def test_an_address_that_cannot_work_is_a_warning_and_the_demo_does_not_answer(home, address):
    home.write(home.user_file, {"providers": {"x": custom(base_url=address)}})
    loaded = await home.load()
    assert loaded.large.selected.provider == "x"
    [warning] = loaded.warnings
    assert (warning.kind, warning.key) == ("bad_address", "providers.x.base_url")
    assert "expected an address such as https://host/v1" in warning.text


@pytest.mark.parametrize("address", ["http://h", "https://[::1]:8/v1?a=b", "$URL", "${A:-x}/v1"])
async def test_an_address_that_may_work_is_no_warning(home, address):
    home.write(home.user_file, {"providers": {"x": custom(base_url=address)}})
    kinds = {each.kind for each in (await home.load()).warnings}
    assert "bad_address" not in kinds


async def test_the_file_with_the_last_word_is_named(home):
    home.write(home.user_file, {"providers": {"x": custom()}})
    home.write(home.project_file, {"providers": {"x": {"type": "abacus"}}})
    home.trust()
    [warning, _] = (await home.load()).warnings
    assert (warning.file, warning.key) == (home.project_file, "providers.x.type")


async def test_a_provider_may_be_put_together_from_several_files(home):
    home.write(home.user_file, {"providers": {"x": {"api_key": "k"}}})
    assert "x" not in (await home.load()).config.providers
    home.write(home.project_file, {"providers": {"x": custom()}})
    home.trust()
    assert "x" in (await home.load()).config.providers


async def test_an_error_does_not_repeat_a_value(home):
    home.write(home.user_file, {"providers": {"x": {"api_key": [SECRET]}}})
    [warning] = texts(await home.load(), ConfigWarningKind.PROVIDER_SKIPPED)
    assert SECRET not in warning


# ── What is said besides ────────────────────────────────────────────────────────────────────────


async def test_a_key_that_nobody_knows_is_tolerated_and_reported(home):
    home.write(
        home.user_file,
        {
            "colour": "blue",
            "options": {"tui": {"glow": 1}},
            "providers": {"x": custom(models=[{"id": "m", "iq": 120}])},
            "mcp": {"m": {"type": "stdio", "volume": 11}},
            "tools": {"ls": {"max_depth": 1, "x": 2}},
        },
    )
    loaded = await home.load()
    assert [
        (n.file, n.key) for n in loaded.warnings if n.kind is ConfigWarningKind.UNKNOWN_KEY
    ] == [
        (home.user_file, "colour"),
        (home.user_file, "options.tui.glow"),
        (home.user_file, "providers.x.models[0].iq"),
        (home.user_file, "mcp.m.volume"),
        (home.user_file, "tools.ls.x"),
    ]


async def test_what_belongs_to_others_has_no_unknown_keys(home):
    home.write(home.user_file, {"providers": {"x": custom(extra_body={"anything": {"goes": 1}})}})
    assert texts(await home.load(), ConfigWarningKind.UNKNOWN_KEY) == []


async def test_scripts_are_not_run_and_what_to_write_instead_is_said(home):
    home.write(home.user_file.parent / "crushrc", "touch ran")
    home.write(home.project / ".crushrc", "touch ran")
    loaded = await home.load()
    warnings = [n for n in loaded.warnings if n.kind is ConfigWarningKind.SCRIPT_NOT_RUN]
    assert [n.file for n in warnings] == [
        home.user_file.parent / "crushrc",
        home.project / ".crushrc",
    ]
    assert "JSON" in warnings[0].text
    assert "`provider` sets belongs under providers" in warnings[0].text
    assert not list(home.root.rglob("ran"))


async def test_a_project_cannot_say_whom_to_trust(home):
    home.write(
        home.project_file, {"crush_trio": {"trusted_directories": ["/"]}, "env": {"X": "$(x)"}}
    )
    loaded = await home.load()
    assert loaded.env == {}
    assert texts(loaded, ConfigWarningKind.NOT_TRUSTED)[0].endswith(
        "crush_trio: ignored: only the user's own files can set this key"
    )


async def test_of_what_is_used_it_is_not_said_that_it_is_not(home):
    home.write(home.user_file, {"mcp": {"m": {"command": "x"}}, "lsp": {"l": {"command": "x"}}})
    assert texts(await home.load(), ConfigWarningKind.NOT_USED) == []


async def test_a_snapshot_does_not_show_keys(home):
    home.environment["OPENAI_API_KEY"] = SECRET
    entry = custom(api_key=SECRET, extra_headers={"x": SECRET}, extra_body={"k": SECRET})
    home.write(home.user_file, {"providers": {"x": entry}, "env": {"TOKEN": SECRET}})
    loaded = await home.load()
    assert SECRET not in repr(loaded)
    assert SECRET not in repr(loaded.places)


async def test_only_the_files_of_the_user_say_what_is_called_for_people_who_are_away(home):
    home.write(home.project_file, {"crush_trio": {"notify": {"command": "theirs"}}})
    assert not (await home.load()).notify.wants(NotifyEvent.RUN_ENDED)
    mine = {"webhook": "https://example.org/hook", "events": ["needs_person"]}
    home.write(home.user_file, {"crush_trio": {"notify": mine}})
    found = (await home.load()).notify
    assert (found.command, found.webhook) == ("", "https://example.org/hook")
    assert found.wants(NotifyEvent.NEEDS_PERSON)
    assert not found.wants(NotifyEvent.RUN_ENDED)
    assert "hook" not in repr(found).replace("webhook", ""), "the address may be a secret"


@pytest.mark.parametrize(
    ("notify", "problem"),
    [
        ({"webhook": "ftp://example.org"}, "must begin with http:// or https://"),
        ({"webhook": "https://me:key@example.org"}, "must not hold a login"),
        ({"events": ["lunch"]}, "lunch"),
        ({"command": ["x"]}, "command"),
    ],
)
async def test_a_notification_that_could_not_be_sent_is_refused(home, notify, problem):
    home.write(home.user_file, {"crush_trio": {"notify": notify}})
    with pytest.raises(ConfigInvalid, match=problem):
        await home.load()


async def test_only_the_files_of_the_user_say_how_long_sessions_are_kept(home):
    home.write(home.project_file, {"crush_trio": {"retention": {"sessions": 1}}})
    assert (await home.load()).retention.sessions == 0
    home.write(home.user_file, {"crush_trio": {"retention": {"sessions": 90}}})
    assert (await home.load()).retention.sessions == 90


@pytest.mark.parametrize("days", [-1, "30d", 1.5])
async def test_a_time_that_sessions_cannot_be_kept_for_is_refused(home, days):
    home.write(home.user_file, {"crush_trio": {"retention": {"sessions": days}}})
    with pytest.raises(ConfigInvalid, match="retention"):
        await home.load()


async def test_the_last_file_of_the_user_that_says_so_has_runs_recorded(home):
    home.write(home.project_file, {"crush_trio": {"record": True}})
    assert not (await home.load()).record
    home.write(home.user_file, {"crush_trio": {"record": True}})
    home.write(home.data_file, {"crush_trio": {"limits": {}}})
    assert (await home.load()).record
    home.write(home.data_file, {"crush_trio": {"record": False}})
    assert not (await home.load()).record
