"""The open ports and the sources of docker-compose.yml and Dockerfile."""

import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

ROOT = Path(__file__).parents[1]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
PROJECT = (ROOT / "everstep" / "cli" / "project" / "compose.yaml.txt").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")

PINNED = re.compile(r"[a-z/-]+:\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}")


def services() -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", yaml.safe_load(COMPOSE)["services"])


def environment(name: str) -> dict[str, str]:
    return services()[name].get("environment", {})


@pytest.mark.parametrize("name", [name for name, service in services().items() if "image" in service])
def test_images_are_pinned(name: str) -> None:
    """13.5.1"""
    assert PINNED.fullmatch(services()[name]["image"])


def test_the_image_is_built_from_pinned_sources() -> None:
    """13.5.1"""
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases
    assert all(map(PINNED.fullmatch, bases))
    [uv] = re.findall(r"uv==(\S+)", DOCKERFILE)
    locked = re.search(r'name = "uv"\nversion = "([^"]+)"', (ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert locked
    assert uv == locked[1]


def test_passwords_must_be_set() -> None:
    """13.5.2"""
    assert environment("postgres")["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert environment("api")["EVERSTEP_BROADCAST_SECRET"].startswith("${EVERSTEP_BROADCAST_SECRET:?")
    for name in services():
        for key, value in environment(name).items():
            if re.search(r"PASSWORD|PWD|SECRET|_KEY", key):
                assert value.startswith("${"), (name, key)
            assert not re.search(r"://\w+:\w+@", str(value)), (name, key)


def test_only_workers_have_the_keys_of_providers() -> None:
    """13.5.2"""
    holders = [name for name in services() if any(key.endswith("_API_KEY") for key in environment(name))]
    assert holders == ["worker"]


def test_a_server_without_a_password_is_open_to_this_machine_only() -> None:
    """13.5.3"""
    ports = {name: service.get("ports", []) for name, service in services().items()}
    public = {
        name for name, opened in ports.items() if any(not each.startswith("127.0.0.1:") for each in opened)
    }
    assert public == {"proxy"}
    assert ports["temporal-ui"] == ["127.0.0.1:8080:8080"]


def test_the_processes_accept_the_names_under_which_they_are_reached() -> None:
    """13.5.3"""
    for name in ("api", "gateway"):
        assert environment(name)["EVERSTEP_ALLOWED_HOSTS"] == "${EVERSTEP_ALLOWED_HOSTS:-api,gateway}"


def test_temporal_dispatches_fairly() -> None:
    """18.2.1"""
    [mounted] = services()["temporal"]["configs"]
    assert environment("temporal")["DYNAMIC_CONFIG_FILE_PATH"] == mounted["target"]
    content = yaml.safe_load(COMPOSE)["configs"][mounted["source"]]["content"]
    assert yaml.safe_load(content) == {"matching.enableFairness": [{"value": True}]}


def test_every_lasting_service_is_watched_or_restarted_and_its_processes_are_two() -> None:
    """18.5.2: two of each process, behind a proxy that knows all of them."""
    lasting = {name for name, each in services().items() if each.get("restart") == "unless-stopped"}
    assert lasting == {"temporal", "worker", "api", "gateway", "proxy", "nats"}
    replicas = {name: each["deploy"]["replicas"] for name, each in services().items() if "deploy" in each}
    assert replicas == {"worker": 2, "api": 2, "gateway": 2}
    watched = {name for name, each in services().items() if "healthcheck" in each}
    assert watched >= {"postgres", "api", "gateway", "proxy"}
    proxy = cast("dict[str, Any]", yaml.safe_load(COMPOSE))["configs"]["proxy"]["content"]
    assert re.findall(r"dynamic a (\w+) (\d+)", proxy) == [("api", "8000"), ("gateway", "6001")]
    assert services()["proxy"]["ports"] == ["8000:8000", "6001:6001"]


def test_agents_come_from_a_folder() -> None:
    """18.5.2"""
    for name in ("worker", "api"):
        assert environment(name)["EVERSTEP_AGENTS"] == "${EVERSTEP_AGENTS:-}"
        assert services()[name]["volumes"] == ["${EVERSTEP_AGENTS_FOLDER:-./agents}:/home/everstep/agents:ro"]


def test_a_new_project_has_the_same_containers() -> None:
    """13.5.1, 13.5.2 and 13.5.3 hold for the file that `everstep init` writes, as it differs only in this."""
    example = cast("dict[str, Any]", yaml.safe_load(COMPOSE))
    written = cast("dict[str, Any]", yaml.safe_load(PROJECT))
    build = written["x-everstep"]["build"]
    bases = re.findall(r"^FROM (\S+)", build["dockerfile_inline"], re.MULTILINE)
    assert bases == re.findall(r"^FROM (\S+)(?! AS)$", DOCKERFILE, re.MULTILINE)
    assert "COPY . " not in build["dockerfile_inline"]
    for each in (*written["services"].values(), written["x-everstep"]):
        if "build" in each:
            assert each["build"] == build
            each["build"] = "."
    assert written == example
