"""The files in `deploy/` fit together, and what they name exists.

Images are not built and no container is started here: that takes docker. What can be checked without is:
every option, path, port and user that one file names and another one or the program must have.
"""

import configparser
import json
import logging.config
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from crush_trio.cli.commands.serve import serve
from crush_trio.net.address import parse_server_url
from crush_trio.server.logging import JsonFormatter
from crush_trio.server.routes import ROUTES
from crush_trio.server.settings import ClusterSettings, ServerSettings
from crush_trio.store.lease import TTL

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
CLUSTER = yaml.safe_load((DEPLOY / "compose-cluster.yaml").read_text("utf-8"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")


def instructions():
    """Return the instructions of the Dockerfile, each as its name and the rest."""
    whole = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [tuple(line.split(" ", 1)) for line in whole.splitlines() if line]


def of_kind(name):
    return [rest for kind, rest in instructions() if kind == name]


def unit(*dropins):
    """Return the unit; of a key that is there twice, the last value, as systemd takes it after an empty one."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    for name in ("crush-trio.service", *dropins):
        parser.read(DEPLOY / name, "utf-8")
    return parser


def parsed(arguments):
    """Return the options of `serve` in *arguments*; raises what the program would print."""
    program, command, *rest = arguments
    assert (Path(program).name, command) == ("crush-trio", "serve")
    context = serve.make_context("serve", [*rest], resilient_parsing=False)
    return context.params


def served_by_container():
    [entry], [command] = of_kind("ENTRYPOINT"), of_kind("CMD")
    return parsed([*json.loads(entry), *json.loads(command)])


def seconds(text):
    return float(text.removesuffix("s"))


# ── systemd ─────────────────────────────────────────────────────────────────────────────────────


def test_the_unit_starts_the_server_with_options_that_there_are():
    service = unit()["Service"]
    arguments = shlex.split(service["ExecStart"])
    place = arguments.index("--socket-group") + 1
    assert arguments[place] == service["SupplementaryGroups"]
    arguments[place] = "0"  # there need be no such group here
    options = parsed(arguments)
    assert options["socket_mode"] == 0o660
    assert options["hosts"] == (f"unix:///run/{service['RuntimeDirectory']}/crush.sock",)
    assert options["drain"] + options["grace"] < float(service["TimeoutStopSec"])


def test_the_unit_has_what_the_server_speaks():
    service = unit()["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert float(service["WatchdogSec"]) > 0
    assert service["ExecReload"].split()[-2:] == ["-HUP", "$MAINPID"]
    assert service["User"] != "root"
    assert service["Restart"] == "on-failure"


def test_the_drop_in_starts_a_node_at_the_address_that_it_advertises():
    service = unit("node.conf")["Service"]
    arguments = shlex.split(service["ExecStart"])
    place = arguments.index("${CRUSH_TRIO_ADVERTISE}")
    [example] = re.findall(r"^CRUSH_TRIO_ADVERTISE=(\S+)$", PAGE, re.MULTILINE)
    arguments[place] = example
    options = parsed(arguments)
    assert options["hosts"] == (str(parse_server_url(example)),)
    assert options["drain"] + options["grace"] < float(service["TimeoutStopSec"])
    assert float(service["TimeoutStartSec"]) > TTL, "it may have to wait for its former start"
    assert (DEPLOY / "node.conf").read_text("utf-8").count("ExecStart=") == 2
    settings = ClusterSettings.of(example)
    assert settings.advertise == example


def test_the_environment_of_a_node_has_variables_that_the_program_knows():
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [block] = [each for each in blocks if "\nCRUSH_TRIO_ADVERTISE=" in each]
    given = dict(line.partition("=")[::2] for line in block.splitlines())
    settings = ServerSettings.from_environment({**given, "CRUSH_TRIO_TOKEN": "x" * 24})
    assert settings.clustered
    assert settings.store.named_site == given["CRUSH_TRIO_SITE"]
    assert settings.guard.public_url == given["CRUSH_TRIO_PUBLIC_URL"]


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("crush-trio.service", "ini"),
        ("node.conf", "ini"),
        ("nginx.conf", "nginx"),
        ("nginx-cluster.conf", "nginx"),
    ],
)
def test_the_page_shows_the_files_as_they_are(file, language):
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert (DEPLOY / file).read_text("utf-8") in blocks


# ── Containers ──────────────────────────────────────────────────────────────────────────────────


def test_every_instruction_is_one_that_docker_knows():
    known = {
        *("FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL"),
        *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    assert {kind for kind, _ in instructions()} <= known


def test_what_the_image_copies_exists_and_is_not_ignored():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split()
    for rest in of_kind("COPY"):
        if not rest.startswith("--from"):
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists()
                assert f"!{name}" in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {f"!{project['readme']}", *(f"!{each}" for each in project["license-files"])} <= {
        *ignored
    }


def test_the_image_runs_as_a_user_of_its_own_and_small():
    [user] = of_kind("USER")
    assert f"--create-home {user}" in DOCKERFILE
    assert all(image.split()[0].endswith("-slim") for image in of_kind("FROM"))
    assert len(of_kind("FROM")) == 2, "what only the build needs is left behind"


def test_the_container_starts_with_options_that_there_are_and_on_the_port_that_it_shows():
    [port] = of_kind("EXPOSE")
    assert served_by_container()["hosts"] == (f"tcp://0.0.0.0:{port}",)
    assert [port] == COMPOSE["services"]["crush-trio"]["expose"]


def test_the_health_check_is_a_program_that_asks_a_probe_on_that_port():
    [check] = of_kind("HEALTHCHECK")
    program = json.loads(check.partition("CMD ")[2])
    compile(program[2], "healthcheck", "exec")
    port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/\S+?)'", program[2]).groups()
    assert [port] == of_kind("EXPOSE")
    assert [route.probe for route in ROUTES if route.path == path] == [True]


def test_the_services_of_the_compose_file_use_what_it_declares():
    services = COMPOSE["services"]
    for service in services.values():
        assert {*service.get("secrets", ())} <= COMPOSE["secrets"].keys()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith("./")
        for other, wanted in service.get("depends_on", {}).items():
            assert other in services
            assert wanted["condition"] == "service_healthy"
    build = services["crush-trio"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    [config] = [each for each in services["nginx"]["volumes"] if ".conf" in each]
    assert (DEPLOY / config.partition(":")[0]).exists()
    assert services["postgres"]["profiles"] == ["postgres"], "it is not started by default"


def test_the_database_has_a_password_of_its_own_from_a_file_that_no_other_service_gets():
    services = COMPOSE["services"]
    environment = services["postgres"]["environment"]
    secret = Path(environment["POSTGRES_PASSWORD_FILE"])
    assert secret.parent == Path("/run/secrets")
    assert [name for name in services if secret.name in services[name].get("secrets", ())] == [
        "postgres"
    ]
    assert COMPOSE["secrets"][secret.name] == {"file": f"./{secret.name}"}
    assert f"> {secret.name} &&" in (DEPLOY / "compose.yaml").read_text("utf-8")
    for service in (*services.values(), *CLUSTER["services"].values()):
        given = " ".join(map(str, service.get("environment", {})))
        assert "PASSWORD" not in given.replace("POSTGRES_PASSWORD_FILE", "")


def test_the_volumes_of_the_service_are_those_of_the_image():
    places = [each.partition(":")[2] for each in COMPOSE["services"]["crush-trio"]["volumes"]]
    assert sorted(places) == sorted(json.loads(of_kind("VOLUME")[0]))


def test_docker_waits_longer_for_the_stop_than_the_server_takes():
    options = served_by_container()
    wait = seconds(COMPOSE["services"]["crush-trio"]["stop_grace_period"])
    assert options["drain"] + options["grace"] < wait


def test_the_variables_of_the_service_are_those_of_the_program():
    variables = {row[0] for row in re.findall(r"^\| `(CRUSH_\w+)` \|()", PAGE, re.MULTILINE)}
    assert COMPOSE["services"]["crush-trio"]["environment"].keys() <= variables


# ── nginx, Hypercorn ────────────────────────────────────────────────────────────────────────────


def upstream(text):
    return re.search(r"upstream crush_trio \{ server (\S+); \}", text)[1]


def test_both_nginx_files_differ_in_the_address_of_the_server_only():
    alone = (DEPLOY / "nginx.conf").read_text("utf-8")
    composed = (DEPLOY / "compose-nginx.conf").read_text("utf-8")
    assert upstream(alone) == "unix:/run/crush-trio/crush.sock"
    assert upstream(composed) == f"crush-trio:{of_kind('EXPOSE')[0]}"

    def rest(text):
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return "\n".join(lines).replace(upstream(text), "")

    assert rest(alone) == rest(composed)


def servers_of(name):
    text = (DEPLOY / name).read_text("utf-8")
    return re.findall(r"^ +server (\S+) max_fails=0;$", text, re.MULTILINE), text


def test_both_nginx_files_of_a_cluster_differ_in_the_addresses_of_the_nodes_only():
    alone, text = servers_of("nginx-cluster.conf")
    composed, other = servers_of("compose-nginx-cluster.conf")
    assert len(alone) == 2
    [port] = of_kind("EXPOSE")
    assert composed == [f"crush-trio:{port}", f"node-2:{port}"]
    for one, two in zip(alone, composed, strict=True):
        text = text.replace(one, two)

    def rest(each):
        return [line for line in each.splitlines() if not line.startswith("#")]

    assert rest(text) == rest(other)


def test_the_nodes_of_the_compose_file_share_a_site_and_are_reached_by_their_names():
    [port] = of_kind("EXPOSE")
    services = CLUSTER["services"]
    sites = set()
    for name in ("crush-trio", "node-2"):
        given = services[name]["environment"]
        assert ClusterSettings.of(given["CRUSH_TRIO_ADVERTISE"]).advertise == f"tcp://{name}:{port}"
        sites.add(given["CRUSH_TRIO_SITE"])
    assert len(sites) == 1
    assert services["node-2"]["extends"] == {"file": "compose.yaml", "service": "crush-trio"}
    assert services["nginx"]["depends_on"].keys() <= services.keys()
    [volume] = services["nginx"]["volumes"]
    source, target = volume.split(":")[:2]
    assert (DEPLOY / source).exists()
    assert target in {each.split(":")[1] for each in COMPOSE["services"]["nginx"]["volumes"]}


@pytest.mark.slow
@pytest.mark.needs("nginx", "openssl")
@pytest.mark.parametrize(
    "name",
    ["nginx.conf", "compose-nginx.conf", "nginx-cluster.conf", "compose-nginx-cluster.conf"],
)
def test_nginx_can_read_its_files(tmp_path, name):
    pair = ["-keyout", str(tmp_path / "server.key"), "-out", str(tmp_path / "server.pem")]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", *pair]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    text = (DEPLOY / name).read_text("utf-8").replace("/etc/ssl/crush-trio", str(tmp_path))
    text = re.sub(r"server (crush-trio|node-2):8765", "server 127.0.0.1:8765", text)
    text = text.replace("443", "8443")
    whole = f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off;\n{text}\n}}"
    (tmp_path / "nginx.conf").write_text(whole, "utf-8")
    command = ["nginx", "-t", "-p", str(tmp_path), "-e", "stderr", "-c", "nginx.conf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_logging_configuration_of_hypercorn_can_be_loaded():
    text = (DEPLOY / "hypercorn-logging.json").read_text("utf-8")
    config = logging.config.DictConfigurator(json.loads(text))
    made = config.configure_formatter(config.config["formatters"]["events"])
    assert isinstance(made, JsonFormatter)


def test_an_option_that_there_is_not_would_be_found():
    with pytest.raises(click.NoSuchOption):
        parsed(["crush-trio", "serve", "--no-such-option"])
