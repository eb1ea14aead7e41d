"""The open ports and the sources of docker-compose.yml and Dockerfile."""

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import promql_parser
import pytest
import yaml

from everstep.runtime.secret_files import is_secret_file
from everstep.runtime.settings import Settings

ROOT = Path(__file__).parents[1]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
PROJECT = (ROOT / "everstep" / "cli" / "project" / "compose.yaml.txt").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")

PINNED = re.compile(r"[a-z/-]+:v?\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}")

MONITORING = {"prometheus", "grafana"}
"""The services of the profile, which a new project does not have."""

OF_THE_IMAGE = {"worker", "api", "gateway", "database"}


def services() -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", yaml.safe_load(COMPOSE)["services"])


def environment(name: str) -> dict[str, str]:
    return services()[name].get("environment", {})


OTHERS = [name for name in services() if name not in OF_THE_IMAGE]


@pytest.mark.parametrize("name", OTHERS)
def test_images_are_pinned(name: str) -> None:
    """13.5.1"""
    assert PINNED.fullmatch(services()[name]["image"])


@pytest.mark.parametrize("file", [COMPOSE, PROJECT], ids=["repository", "project"])
def test_the_files_follow_the_specification_of_compose_files(file: str) -> None:
    """18.5.2"""
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    faults = jsonschema_rs.validator_for(json.loads(schema.read_text())).iter_errors(yaml.safe_load(file))
    assert [f"{fault.instance_path}: {fault.message}" for fault in faults] == []


def test_the_image_is_built_from_pinned_sources() -> None:
    """13.5.1"""
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases
    assert all(map(PINNED.fullmatch, bases))
    [uv] = re.findall(r"uv==(\S+)", DOCKERFILE)
    locked = re.search(r'name = "uv"\nversion = "([^"]+)"', (ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert locked
    assert uv == locked[1]


def test_secrets_are_in_files() -> None:
    """13.5.2, 18.5.1: the file has none of them, and what a process does not need is not mounted there."""
    written = yaml.safe_load(COMPOSE)
    for name, service in services().items():
        for key, value in environment(name).items():
            if re.search(r"PASSWORD|PWD|SECRET|_KEY|DATABASE_URL", key):
                assert key.endswith("_FILE") or value == f"${{{key}:-}}", (name, key)
            assert not re.search(r"://\w+:\w+@", str(value)), (name, key)
            if key.endswith("_FILE") and str(value).startswith("/run/secrets/"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], (name, key)
        for mounted in service.get("secrets", ()):
            assert written["secrets"][mounted]["file"] == f"${{EVERSTEP_SECRETS:-./secrets}}/{mounted}"
    holders = {name for name, each in services().items() if "postgres-password" in each.get("secrets", ())}
    assert holders == {"postgres", "temporal", "temporal-schema"}


@pytest.mark.parametrize("file", [COMPOSE, PROJECT], ids=["repository", "project"])
def test_the_secrets_are_drawn_as_the_file_says(file: str, tmp_path: Path) -> None:
    """13.5.2: others cannot enter the folder, and containers' users read its files, under any umask."""
    comments = re.findall(r"^#     (.*)$", file, re.MULTILINE)
    drawing = [line for line in comments if not line.startswith("docker ")]
    subprocess.run(["sh", "-euc", "\n".join(["umask 077", *drawing])], cwd=tmp_path, check=True)  # noqa: S603, S607
    password = (tmp_path / "secrets" / "postgres-password").read_text().strip()
    assert len(password) == 48
    url = (tmp_path / "secrets" / "database-url").read_text().strip()
    assert url == f"postgresql://everstep:{password}@postgres:5432/everstep"
    assert len((tmp_path / "secrets" / "broadcast-secret").read_text().strip()) == 64
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "secrets" / "database-url").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "secrets" / "everstep").stat().st_mode & 0o777 == 0o755


def test_each_variable_is_a_setting() -> None:
    """18.5.2: a misspelled one would have no effect."""
    standard = {"TEMPORAL_ADDRESS", "FORWARDED_ALLOW_IPS", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    for name in OF_THE_IMAGE:
        for variable in environment(name):
            assert variable in Settings.variables() | standard or is_secret_file(variable), (name, variable)


def test_an_empty_variable_is_as_if_it_were_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """18.5.2: compose files pass on variables without a value, and projects name agents in everstep.toml."""
    (tmp_path / "everstep.toml").write_text('agents = ["agents:agents"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERSTEP_AGENTS", "")
    monkeypatch.setenv("EVERSTEP_METRICS_PORT", "")
    settings = Settings.read()
    assert settings.agents == ("agents:agents",)
    assert settings.metrics_port is None


def test_only_workers_have_the_keys_of_providers() -> None:
    """13.5.2"""
    holders = [name for name in services() if any("_API_KEY" in key for key in environment(name))]
    assert holders == ["worker"]
    mounting = [name for name, each in services().items() if "/providers" in str(each.get("volumes"))]
    assert mounting == ["worker"]


def test_a_server_without_a_password_is_open_to_this_machine_only() -> None:
    """13.5.3"""
    ports = {name: service.get("ports", []) for name, service in services().items()}
    public = {
        name for name, opened in ports.items() if any(not each.startswith("127.0.0.1:") for each in opened)
    }
    assert public == {"proxy"}
    assert ports["temporal-ui"] == ["127.0.0.1:8080:8080"]
    assert "grafana-password" in environment("grafana")["GF_SECURITY_ADMIN_PASSWORD__FILE"]


def test_the_processes_accept_the_names_under_which_they_are_reached() -> None:
    """13.5.3"""
    for name in ("api", "gateway"):
        first, _, ranges = environment(name)["EVERSTEP_ALLOWED_HOSTS"].partition("},")
        assert first == "${EVERSTEP_ALLOWED_HOSTS:-api,gateway"
        # Addresses are no names that a web page could choose.
        assert ranges == "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"


def test_temporal_dispatches_fairly() -> None:
    """18.2.1: and as the guide to clusters says."""
    [mounted] = services()["temporal"]["configs"]
    assert environment("temporal")["DYNAMIC_CONFIG_FILE_PATH"] == mounted["target"]
    content = yaml.safe_load(COMPOSE)["configs"][mounted["source"]]["content"]
    values = yaml.safe_load(content)
    assert values["matching.enableFairness"] == [{"value": True}]
    [recommended] = re.findall(
        r"```yaml\n(matching.*?)```", (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert values == yaml.safe_load(recommended)


def test_postgresql_accepts_the_connections_of_all_processes() -> None:
    """13.5.4: each may open all of its pool, and commands need some as well."""
    [option] = [each for each in services()["postgres"]["command"] if each.startswith("max_connections")]
    accepted = int(option.removeprefix("max_connections=${POSTGRES_MAX_CONNECTIONS:-").removesuffix("}"))
    processes = sum(services()[name]["deploy"]["replicas"] for name in ("worker", "api", "gateway"))
    of_each = environment("worker").get("EVERSTEP_DATABASE_CONNECTIONS") or Settings().database_connections
    roles = ("frontend", "history", "matching", "worker")
    temporal = environment("temporal")
    of_temporal = len(roles) * (int(temporal["SQL_MAX_CONNS"]) + int(temporal["SQL_VIS_MAX_CONNS"]))
    reserved_for_superusers = 3
    of_a_command = Settings().database_connections
    needed = processes * int(of_each) + of_temporal + of_a_command + reserved_for_superusers
    assert needed <= accepted


def test_settings_that_the_file_sets_can_be_changed() -> None:
    """13.5.5: what it sets wins over everstep.env, so it passes on all but its services' wiring."""
    wiring = {
        "DATABASE_URL_FILE", "TEMPORAL_ADDRESS", "EVERSTEP_BROADCAST_SECRET_FILE", "EVERSTEP_GATEWAY_HOST",
        "EVERSTEP_METRICS_HOST", "EVERSTEP_METRICS_PORT", "EVERSTEP_HTTP_HOST", "FORWARDED_ALLOW_IPS",
    }  # fmt: skip
    for name in OF_THE_IMAGE:
        for variable, value in environment(name).items():
            assert variable in wiring or value.startswith(f"${{{variable}"), (name, variable)
        folder = "${EVERSTEP_SECRETS:-./secrets}/everstep:/run/secrets/everstep:ro"
        assert folder in services()[name]["volumes"], name
    # Empty, it counts as not set, and EVERSTEP_NATS_URL_FILE can be.
    assert environment("worker")["EVERSTEP_NATS_URL"] == "${EVERSTEP_NATS_URL-nats://nats:4222}"


def test_metrics_are_not_public() -> None:
    """13.5.6: they name tenants. Prometheus reads them from the containers themselves."""
    proxy = yaml.safe_load(COMPOSE)["configs"]["proxy"]["content"]
    for site in re.split(r"^(?=:\d+ )", proxy, flags=re.MULTILINE)[1:]:
        assert "respond /metrics 404" in site
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    caddy, nginx = re.findall(r"With (?:Caddy|nginx).*?```\n(.*?)```", guide, re.DOTALL)
    assert caddy.count("respond /metrics 404") == caddy.count("reverse_proxy")
    assert nginx.count("location = /metrics { return 404; }") == nginx.count("proxy_pass")


def test_every_lasting_service_is_watched_and_restarted_and_its_processes_are_two() -> None:
    """18.5.2: two of each process, behind a proxy that knows all of them."""
    one_shot = {"temporal-schema", "temporal-namespace", "database"}
    lasting = {name for name, each in services().items() if each.get("restart") == "unless-stopped"}
    assert lasting == {*services()} - one_shot
    assert {name for name, each in services().items() if "healthcheck" in each} == lasting
    replicas = {name: each["deploy"]["replicas"] for name, each in services().items() if "deploy" in each}
    assert replicas == {"worker": 2, "api": 2, "gateway": 2}
    proxy = cast("dict[str, Any]", yaml.safe_load(COMPOSE))["configs"]["proxy"]["content"]
    assert re.findall(r"dynamic a (\w+) (\d+)", proxy) == [("api", "8000"), ("gateway", "6001")]
    assert services()["proxy"]["ports"] == ["8000:8000", "6001:6001"]


def test_agents_come_from_a_folder() -> None:
    """18.5.2"""
    for name in ("worker", "api"):
        assert environment(name)["EVERSTEP_AGENTS"] == "${EVERSTEP_AGENTS:-}"
        assert "${EVERSTEP_AGENTS_FOLDER:-./agents}:/home/everstep/agents:ro" in services()[name]["volumes"]


def test_agents_come_from_an_image() -> None:
    """18.5.2"""
    assert {services()[name]["image"] for name in OF_THE_IMAGE} == {"${EVERSTEP_IMAGE:-everstep}"}


def test_temporals_schema_is_set_up_by_its_admin_tools() -> None:
    """18.5.2: the image `auto-setup` is deprecated."""
    assert "auto-setup" not in COMPOSE
    assert services()["temporal-schema"]["image"].startswith("temporalio/admin-tools:")
    assert services()["temporal"]["depends_on"]["temporal-schema"]["condition"] == (
        "service_completed_successfully"
    )


def test_prometheus_and_grafana_are_a_profile_with_the_files_of_the_repository() -> None:
    """18.5.9"""
    written = yaml.safe_load(COMPOSE)
    assert {
        name for name, each in services().items() if "monitoring" in each.get("profiles", ())
    } == MONITORING
    [mounted] = [each for each in services()["prometheus"]["volumes"] if each.startswith("./")]
    assert (ROOT / mounted.partition(":")[0]).samefile(ROOT / "deploy" / "alerts.yml")
    config = yaml.safe_load(written["configs"]["prometheus"]["content"])
    assert config["rule_files"] == [mounted.split(":")[1]]
    [job] = config["scrape_configs"]
    # The alert about a process that is away selects the job by its name.
    down = next(r for r in alert_rules() if r["alert"] == "EverstepDown")
    [pattern] = re.findall(r'job=~"(.*?)"', str(promql_parser.parse(down["expr"])))
    assert re.fullmatch(pattern, job["job_name"])
    found = {name: each["port"] for each in job["dns_sd_configs"] for name in each["names"]}
    assert found == {
        "api": 8000,
        "gateway": 6001,
        "worker": int(environment("worker")["EVERSTEP_METRICS_PORT"]),
    }
    [folder] = [each for each in services()["grafana"]["volumes"] if each.startswith("./")]
    assert (ROOT / folder.split(":")[0]).samefile(ROOT / "deploy" / "grafana")
    [provider] = yaml.safe_load(written["configs"]["grafana-dashboards"]["content"])["providers"]
    assert provider["options"]["path"] == folder.split(":")[1]


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_a_new_project_has_the_same_containers() -> None:
    """13.5.1, 13.5.2 and 13.5.3 hold for the file that `everstep init` writes, as it differs only in this."""
    example = cast("dict[str, Any]", yaml.safe_load(COMPOSE))
    written = cast("dict[str, Any]", yaml.safe_load(PROJECT))
    build = written["x-everstep"]["build"]
    bases = re.findall(r"^FROM (\S+)", build["dockerfile_inline"], re.MULTILINE)
    assert bases == re.findall(r"^FROM (\S+)(?! AS)$", DOCKERFILE, re.MULTILINE)
    assert "COPY . " not in build["dockerfile_inline"]
    for name in MONITORING:
        del example["services"][name]
        del example["volumes"][name]
        example["configs"] = {key: each for key, each in example["configs"].items() if name not in key}
    del example["secrets"]["grafana-password"]
    for each in (*written["services"].values(), written["x-everstep"]):
        if "build" in each:
            assert each["build"] == build
            each["build"] = "."
    assert written == example
