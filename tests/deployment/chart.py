"""The chart, rendered by helm, and the schemas of Kubernetes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "everstep"
COMPLETE: Final = Path(__file__).parent / "complete_values.yaml"
FAULTY: Final = Path(__file__).parent / "faulty_values.yaml"

MINIMAL: Final = (
    "image.repository=registry.example.com/agents",
    "image.tag=1.0",
    "temporal.address=temporal:7233",
    "secrets.name=everstep",
)
"""The values that have to be set."""

OF_OPERATORS: Final = {"ExternalSecret", "HTTPRoute", "PodMonitor", "PrometheusRule", "ScaledObject"}
"""The kinds that Kubernetes itself does not have."""

Manifest = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm, which the package index has for Linux on x86-64; elsewhere it has to be on the path."""
    path = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        reason = "helm is not installed, and the package index has none for this machine"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 -- fixed


def refusal(*values: str) -> str:
    """What helm says of these values, which the chart refuses."""
    rendered = helm("template", "prod", CHART, *(f"--set={value}" for value in values))
    assert rendered.returncode == 1
    return rendered.stderr


@cache
def render(*values: str, complete: bool = False, upgrades: bool = False) -> Sequence[Manifest]:
    """The manifests of the chart with these values, in addition to those that have to be set."""
    given = [f"--values={COMPLETE}"] if complete else [f"--set={value}" for value in MINIMAL]
    options = ["--is-upgrade"] if upgrades else []
    more = [f"--set={value}" for value in values]
    rendered = helm("template", "prod", CHART, "--namespace=agents", *options, *given, *more)
    assert rendered.returncode == 0, rendered.stderr
    return [each for each in yaml.safe_load_all(rendered.stdout) if each]


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> dict[str, Manifest]:
    """The manifests of these kinds, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] in kinds}


def pods(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """The specifications of all pods, by the name of what makes them."""
    found = dict[str, Manifest]()
    for name, each in of_kind(manifests, "Deployment", "Job", "CronJob").items():
        spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
        found[name] = spec["template"]["spec"]
    return found


def container(pod: Manifest) -> Manifest:
    """The only container of a pod."""
    [found] = pod["containers"]
    return found


def variables(pod: Manifest, **fields: str) -> dict[str, str]:
    """The environment of a pod's container, in which the fields of the pod are these."""
    values = dict[str, str]()
    for each in container(pod)["env"]:
        assert each["name"] not in values, each["name"]
        if "valueFrom" in each:
            values[each["name"]] = fields.get(each["valueFrom"]["fieldRef"]["fieldPath"], "")
        else:
            # Kubernetes replaces the variables that are defined before.
            values[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each["value"])
    return values


@cache
def _schemas(version: str) -> tuple[Path, jsonschema_rs.Registry]:
    folder = Path(str(files("kubernetes_validate"))) / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())
    return folder, jsonschema_rs.Registry([(definitions["$id"], definitions)])


def schema_faults(manifest: Manifest, version: str) -> Iterator[str]:
    """What a version of Kubernetes would refuse, unknown fields included."""
    folder, registry = _schemas(version)
    group, _, own = manifest["apiVersion"].rpartition("/")
    name = "-".join(filter(None, [manifest["kind"].lower(), group.partition(".")[0], own]))
    schema: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    for error in jsonschema_rs.Draft202012Validator(schema, registry=registry).iter_errors(manifest):
        yield f"{manifest['kind']} {manifest['metadata']['name']}: {error.instance_path}: {error.message}"
