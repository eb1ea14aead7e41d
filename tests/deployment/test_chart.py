"""The Helm chart: what it renders is valid, and fits the processes that it starts."""

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from everstep.cli.main import PLACES
from everstep.runtime.secret_files import is_secret_file
from everstep.runtime.settings import Settings
from tests.deployment.chart import (
    CHART,
    COMPLETE,
    FAULTY,
    MINIMAL,
    OF_OPERATORS,
    ROOT,
    container,
    helm,
    of_kind,
    pods,
    refusal,
    render,
    schema_faults,
    variables,
)

STANDARD = {"DATABASE_URL", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "FORWARDED_ALLOW_IPS", "POD_IP"}
"""Variables without the prefix: of Everstep, of uvicorn, and of the chart."""

VARIANTS: dict[str, dict[str, Any]] = {
    "minimal": {},
    "complete": {"complete": True},
    "upgrade": {"complete": True, "upgrades": True},
    "hpa": {"values": ("worker.autoscaling.kind=hpa", "worker.buildId=1")},
    "without gateways": {"values": ("gateway.replicas=0",)},
}


def variant(name: str) -> Any:
    given = dict(VARIANTS[name])
    return render(*given.pop("values", ()), **given)


def test_helm_finds_nothing_to_improve() -> None:
    """18.5.3"""
    for values in ([f"--values={COMPLETE}"], [f"--set={value}" for value in MINIMAL]):
        linted = helm("lint", "--strict", CHART, *values)
        assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("name", VARIANTS)
def test_kubernetes_accepts_what_is_rendered(name: str, version: str) -> None:
    """18.5.3: by the schemas of the oldest version that the chart allows, and of the newest."""
    manifests = variant(name)
    assert manifests
    own = [each for each in manifests if each["kind"] not in OF_OPERATORS]
    assert [fault for each in own for fault in schema_faults(each, version)] == []
    for each in manifests:
        assert len(each["metadata"]["name"]) <= 63
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "prod"


def test_the_schemas_would_find_a_mistake() -> None:
    manifest = json.loads(json.dumps(next(iter(of_kind(variant("minimal"), "Deployment").values()))))
    manifest["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    assert any("livenesProbe" in fault for fault in schema_faults(manifest, "1.37"))


@pytest.mark.parametrize(
    ("left_out", "sentence"),
    [
        ("image.repository", "image.repository is not set: name the image that you built with your agents"),
        ("image.tag", "image.tag is not set: name the version of the image"),
        ("temporal.address", "temporal.address is not set: name the frontend of Temporal"),
        ("secrets.name", "secrets.name is not set: name the Secret that has DATABASE_URL"),
    ],
)
def test_each_missing_value_gets_one_sentence(left_out: str, sentence: str) -> None:
    """18.5.4"""
    said = refusal(*(value for value in MINIMAL if not value.startswith(f"{left_out}=")))
    assert sentence in said
    assert len(re.findall(r"^\w[\w.]* (?:is|lacks|sets) ", said, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("hosts.api=a.example,hosts.gateway=a.example", "hosts.api and hosts.gateway are the same"),
        ("ingress.enabled=true", "hosts.api is not set"),
        ("ingress.enabled=true,hosts.api=a.example", "hosts.gateway is not set"),
        ("httpRoutes.enabled=true,hosts.api=a,hosts.gateway=b", "httpRoutes.parentRefs is empty"),
        ("secrets.variables={DATABASE_URL}", "secrets.variables lacks EVERSTEP_BROADCAST_SECRET"),
        ("secrets.variables={EVERSTEP_BROADCAST_SECRET}", "secrets.variables lacks DATABASE_URL"),
        ("workerSecrets.variables={OPENAI_API_KEY}", "workerSecrets.name is not set"),
        ("externalSecrets.enabled=true", "externalSecrets.storeRef.name is not set"),
        ("externalSecrets.enabled=true", "externalSecrets.remoteKeys lacks DATABASE_URL"),
        ("nats.enabled=true", "nats.url is not set: name a server of NATS"),
        ("nats.url=nats://nats:4222", "nats.enabled is false and other values of nats are set"),
        ("nats.enabled=true,nats.url=nats://a:b@nats", "nats.url has a user or a password"),
        (
            "nats.enabled=true,nats.url=nats://nats,secrets.variables={DATABASE_URL,EVERSTEP_NATS_URL}",
            "nats.url is set, and secrets.variables has EVERSTEP_NATS_URL as well",
        ),
        ("nats.enabled=true,nats.url=http://nats", "nats.url: Does not match pattern"),
        ("env.EVERSTEP_BUS=nats", "env sets EVERSTEP_BUS, which the chart sets"),
        ("database.pooled=yes", "database.pooled: Invalid type"),
        ("worker.autoscaling.kind=keda", "worker.autoscaling.prometheusAddress is not set"),
        ("worker.previousBuilds[0].buildId=a", "worker.previousBuilds is set without worker.buildId"),
        ("worker.buildId=b,worker.previousBuilds[0].buildId=a", "has neither a tag nor a digest"),
        (
            "worker.buildId=a,worker.previousBuilds[0].buildId=a,worker.previousBuilds[0].tag=1",
            "the build a is named twice",
        ),
        ("worker.buildId=a,worker.replicas=0", "worker.replicas is 0 and worker.buildId is set"),
        ("api.env.EVERSTEP_HTTP_PORT=1", "api.env sets EVERSTEP_HTTP_PORT, which the chart sets"),
        ("env.DATABASE_URL=x", "env sets DATABASE_URL, which is in a Secret as well"),
        ("worker.replica=3", "worker: Additional property replica is not allowed"),
        ("worker.replicas=many", "worker.replicas: Invalid type"),
        ("temporal.address=temporal", "temporal.address: Does not match pattern"),
        ("worker.metricsPort=99999", "worker.metricsPort: Must be less than or equal to 65535"),
        ("worker.env.everstep-build=3", "worker.env"),
    ],
)
def test_values_that_cannot_work_get_a_sentence(values: str, sentence: str) -> None:
    """18.5.4"""
    assert sentence in refusal(*MINIMAL, values)


def test_values_that_a_cluster_would_refuse_get_a_sentence_each() -> None:
    """18.5.4: of a file, in which numbers are not what they are on the command line; all faults at once."""
    rendered = helm("template", "prod", CHART, f"--values={FAULTY}")
    assert rendered.returncode == 1
    said = [line for line in rendered.stderr.splitlines() if line.endswith(".") and line[:1].islower()]
    for sentence in (
        "image.tag is a number, of which YAML drops digits, as of 1.10",
        "worker.buildId is a number, of which",
        "worker.previousBuilds[0].tag is a number, of which",
        "env sets EVERSTEP_DATABASE_URL, which is in a Secret as well",
        "worker.env sets DATABASE_URL_FILE, which is in a Secret as well",
        "api.env sets EVERSTEP_TEMPORAL_ADDRESS, which the chart sets from another value",
        "gateway.env sets EVERSTEP_LARGE to a number of which YAML drops digits",
        "temporal.address is a URL: name the host and the port only",
        "the objects would be named UPPER...: set fullnameOverride to lower-case letters",
        "secrets.name is 'My_Secret', which Kubernetes refuses as a name",
        "worker.autoscaling.minReplicas is 5 and maxReplicas 2",
        "api.autoscaling.minReplicas is 11 and maxReplicas 10",
        "retention.schedule is 'daily', which is no schedule of cron",
    ):
        [line] = [line for line in said if line.startswith(sentence)]
        said.remove(line)
    assert said == []


def test_numbers_of_a_file_are_not_rounded() -> None:
    """18.5.3: Helm has them as floats."""
    given = variables(pods(variant("complete"))["prod-everstep-api"])
    assert given["EVERSTEP_ATTACHMENT_MAX_BYTES"] == "25000000"
    for pod in pods(variant("complete")).values():
        assert pod["securityContext"]["fsGroup"] == 1000660000


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variable_is_a_setting(name: str) -> None:
    """18.5.3: a misspelled one would have no effect."""
    known = Settings.variables() | STANDARD
    for pod in pods(variant(name)).values():
        for variable in variables(pod):
            is_known = variable in known or is_secret_file(variable) or variable.startswith("OTEL_")
            assert is_known, variable


@pytest.mark.parametrize("name", VARIANTS)
def test_each_command_exists(name: str) -> None:
    """18.5.3"""
    for pod in pods(variant(name)).values():
        program, command, *rest = container(pod)["command"]
        assert program == "everstep"
        module, _, attribute = PLACES[command].partition(":")
        found = getattr(importlib.import_module(f"everstep.cli.{module}"), attribute)
        if isinstance(found, click.Group):
            found = found.commands[rest.pop(0)]
        # Unknown options and missing arguments raise.
        found.make_context(command, rest)


@pytest.mark.parametrize("name", VARIANTS)
def test_probes_and_services_are_at_ports_on_which_the_processes_listen(name: str) -> None:
    """18.5.3"""
    manifests = variant(name)
    listens = {"http": "EVERSTEP_HTTP", "gateway": "EVERSTEP_GATEWAY", "metrics": "EVERSTEP_METRICS"}
    for pod in (found for found in pods(manifests).values() if "ports" in container(found)):
        given = variables(pod)
        ports = {each["name"]: each["containerPort"] for each in container(pod)["ports"]}
        if "link" in ports:
            assert given["EVERSTEP_GATEWAY_LINK_PORT"] == str(ports.pop("link"))
        [(port, number)] = ports.items()
        assert given[f"{listens[port]}_PORT"] == str(number)
        assert given[f"{listens[port]}_HOST"] == "0.0.0.0"  # noqa: S104 -- compared, not bound
        probes = [container(pod)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
        assert probes == [{"path": path, "port": port} for path in ("/healthz", "/healthz", "/readyz")]
    for service in of_kind(manifests, "Service").values():
        [target] = service["spec"]["ports"]
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        assert target["targetPort"] == {"api": "http", "gateway": "gateway"}[component]


def test_processes_are_reached_by_the_addresses_of_their_pods() -> None:
    """18.5.3: workers find gateways, and Prometheus finds all, by addresses that they accept."""
    for name, pod in pods(variant("complete")).items():
        given = variables(pod, **{"status.podIP": "10.1.2.3"})
        if "EVERSTEP_ALLOWED_HOSTS" in given:
            hosts = given["EVERSTEP_ALLOWED_HOSTS"].split(",")
            assert {"agents.example.com", "watch.example.com", "10.1.2.3"} <= {*hosts}
        if name.endswith(("-api", "-gateway")):
            assert given["EVERSTEP_GATEWAY_LINK_HOST"] == "10.1.2.3"
            assert given["EVERSTEP_GATEWAY_URL"] == "wss://watch.example.com"
            assert given["EVERSTEP_PUBLIC_URL"] == "https://agents.example.com"


@pytest.mark.parametrize("name", VARIANTS)
def test_containers_have_no_rights_that_they_do_not_need(name: str) -> None:
    """18.5.7"""
    for owner, pod in pods(variant(name)).items():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000
        own = container(pod)["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        has_sandbox = name in {"complete", "upgrade"} and "-worker" in owner
        expected = "Unconfined" if has_sandbox else "RuntimeDefault"
        assert pod["securityContext"]["seccompProfile"]["type"] == expected
        assert ("procMount" in own) == has_sandbox
        assert ("hostUsers" in pod) == has_sandbox


def test_only_workers_have_the_keys_of_providers() -> None:
    """18.5.7"""
    for name, pod in pods(variant("complete")).items():
        mounted = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
        is_worker = "-worker" in name
        assert mounted == ({"everstep", "everstep-providers"} if is_worker else {"everstep"})
        assert ("OPENAI_API_KEY_FILE" in variables(pod)) == is_worker
        assert not {"DATABASE_URL", "EVERSTEP_BROADCAST_SECRET", "OPENAI_API_KEY"} & variables(pod).keys()


def test_each_build_has_workers_of_its_own() -> None:
    """18.5.8"""
    manifests = variant("complete")
    workers = {
        variables(pod)["EVERSTEP_BUILD_ID"]: (name, container(pod)["image"])
        for name, pod in pods(manifests).items()
        if "-worker" in name
    }
    current, before = "2026-11-20.1", "2026-11-18.1"
    assert {build: image for build, (_, image) in workers.items()} == {
        build: f"registry.example.com/agents:{build}" for build in (current, before)
    }
    assert len({name for name, _ in workers.values()}) == 2
    deployments = of_kind(manifests, "Deployment")
    # The autoscaler has the current one; the number of the others is theirs.
    assert "replicas" not in deployments[workers[current][0]]["spec"]
    assert deployments[workers[before][0]]["spec"]["replicas"] == 1
    [scaled] = of_kind(manifests, "ScaledObject").values()
    assert scaled["spec"]["scaleTargetRef"] == {"name": workers[current][0]}
    job = of_kind(manifests, "Job")["prod-everstep-build"]
    assert container(pods(manifests)["prod-everstep-build"])["command"][:4] == [
        *("everstep", "builds", "set-current", current)
    ]
    assert "post-upgrade" in job["metadata"]["annotations"]["helm.sh/hook"]


def test_an_upgrade_does_not_touch_the_workers_of_earlier_builds() -> None:
    """18.5.8: their pods are the same when the next build joins them."""
    first = render("worker.buildId=1.0")
    second = render(
        "worker.buildId=1-0", "image.tag=2.0", "worker.previousBuilds[0].buildId=1.0",
        "worker.previousBuilds[0].tag=1.0", "worker.previousBuilds[0].replicas=2",
    )  # fmt: skip
    [(name, before)] = ((n, d) for n, d in of_kind(first, "Deployment").items() if "-worker" in n)
    assert of_kind(second, "Deployment")[name] == before
    assert len([n for n in of_kind(second, "Deployment") if "-worker" in n]) == 2


def test_workers_are_scaled_by_what_waits_for_them() -> None:
    """18.5.8"""
    [scaled] = of_kind(variant("complete"), "ScaledObject").values()
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"]["threshold"] == "200"
    query = trigger["metadata"]["query"]
    assert "everstep_queue_depth" in query
    assert "everstep_activity_slots" in query
    promql = pytest.importorskip("promql_parser")
    promql.parse(query)
    [hpa] = of_kind(variant("hpa"), "HorizontalPodAutoscaler").values()
    assert hpa["spec"]["metrics"][0]["external"]["target"]["averageValue"] == "200"


def test_tables_are_migrated_before_new_processes_start() -> None:
    """18.5.5: the secret of an installation that makes its own does not exist before its first objects do."""
    before = "pre-install,pre-upgrade"
    for name, hook in (("minimal", before), ("upgrade", before), ("complete", None)):
        job = of_kind(variant(name), "Job")["prod-everstep-migration"]
        assert job["metadata"].get("annotations", {}).get("helm.sh/hook") == hook
    given = variables(pods(variant("complete"))["prod-everstep-migration"])
    assert given["DATABASE_URL_FILE"] == "/run/secrets/everstep/DATABASE_DIRECT_URL"


def test_processes_find_pgbouncer_the_standby_and_nats() -> None:
    """18.5.3: each has the URLs that it needs, and no other one."""
    for name, pod in pods(variant("complete")).items():
        given = variables(pod)
        items = [item["key"] for each in pod["volumes"] for item in each.get("secret", {}).get("items", ())]
        if not name.endswith("-migration"):
            assert given["DATABASE_URL_FILE"] == "/run/secrets/everstep/DATABASE_URL"
            assert "DATABASE_DIRECT_URL" not in items
            assert (given["EVERSTEP_BUS"], given["EVERSTEP_NATS_URL"]) == (
                "nats",
                "tls://nats.messaging:4222",
            )
            assert given["EVERSTEP_NATS_CREDENTIALS"] == "/run/secrets/everstep/everstep.creds"
            assert "everstep.creds" in items
        has_replica = name.endswith("-api")
        assert (("DATABASE_REPLICA_URL" in items), ("DATABASE_REPLICA_URL_FILE" in given)) == (
            has_replica, has_replica
        )  # fmt: skip
        for each in container(pod)["volumeMounts"]:
            assert each["name"] in {volume["name"] for volume in pod["volumes"]}
    [own, _] = of_kind(variant("complete"), "ExternalSecret").values()
    keys = {each["secretKey"] for each in own["spec"]["data"]}
    assert {"DATABASE_DIRECT_URL", "DATABASE_REPLICA_URL", "everstep.creds"} <= keys
    plain = variables(pods(variant("minimal"))["prod-everstep-api"])
    assert not {"EVERSTEP_BUS", "DATABASE_REPLICA_URL_FILE"} & plain.keys()
    shared = render(
        "nats.enabled=true", "secrets.variables={DATABASE_URL,EVERSTEP_AUTH_SECRET,EVERSTEP_NATS_URL}"
    )
    given = variables(pods(shared)["prod-everstep-gateway"])
    assert given["EVERSTEP_NATS_URL_FILE"] == "/run/secrets/everstep/EVERSTEP_NATS_URL"
    assert "EVERSTEP_NATS_URL" not in given


def test_stopping_processes_have_the_time_that_they_need() -> None:
    """18.5.5"""
    for name, pod in pods(variant("minimal")).items():
        given, grace = variables(pod), pod.get("terminationGracePeriodSeconds", 0)
        sleep = (
            container(pod).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])
        )
        if name.endswith("-worker"):
            assert grace > float(given["EVERSTEP_GRACEFUL_SHUTDOWN_SECONDS"])
        elif name.endswith("-gateway"):
            assert grace > float(sleep[1]) + float(given["EVERSTEP_GATEWAY_DRAIN_SECONDS"])
            assert float(sleep[1]) > 0
        elif name.endswith("-api"):
            assert grace > float(sleep[1]) > 0
    deployments = of_kind(variant("minimal"), "Deployment")
    assert {each["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] for each in deployments.values()} == {
        0
    }
    budgets = of_kind(variant("minimal"), "PodDisruptionBudget")
    assert {*budgets} == {*deployments}


def test_pods_talk_only_to_what_they_need() -> None:
    """18.5.7"""
    policies = of_kind(variant("complete"), "NetworkPolicy")
    everyone = policies["prod-everstep"]["spec"]
    # All pods, jobs included: nothing comes in; DNS, PostgreSQL, Temporal and what the operator names go out.
    assert everyone["podSelector"] == {
        "matchLabels": {"app.kubernetes.io/name": "everstep", "app.kubernetes.io/instance": "prod"}
    }
    assert everyone["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in everyone
    assert [[port["port"] for port in rule["ports"]] for rule in everyone["egress"]] == [
        [53, 53], [5432], [7233], [4222], [6432], [5432], [4318]
    ]  # fmt: skip
    alone = of_kind(variant("minimal"), "NetworkPolicy")["prod-everstep"]["spec"]["egress"]
    assert [rule["ports"][0]["port"] for rule in alone] == [53, 5432, 7233]
    writers = policies["prod-everstep-writers"]["spec"]
    [chosen] = writers["podSelector"]["matchExpressions"]
    assert chosen["values"] == ["worker", "api"]
    providers = writers["egress"][1]
    assert "169.254.0.0/16" in providers["to"][0]["ipBlock"]["except"]
    assert providers["ports"] == [{"port": 443, "protocol": "TCP"}]
    gateway = policies["prod-everstep-gateway"]["spec"]
    assert gateway["policyTypes"] == ["Ingress"]
    public, link = gateway["ingress"]
    names = [each["namespaceSelector"]["matchLabels"] for each in public["from"]]
    assert [name["kubernetes.io/metadata.name"] for name in names] == ["ingress-nginx", "monitoring"]
    assert link["ports"] == [{"port": "link", "protocol": "TCP"}]
    [worker] = policies["prod-everstep-worker"]["spec"]["ingress"]
    assert worker["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    for keys in (
        "env.EVERSTEP_AUTH_JWKS_URL=https://id.example",
        "config=auth_jwks_url = 'https://id.example'",
    ):
        signed = render(keys, "networkPolicies.providers.ports={443,8443}")
        gateway = of_kind(signed, "NetworkPolicy")["prod-everstep-gateway"]["spec"]
        assert gateway["policyTypes"] == ["Ingress", "Egress"]
        assert [port["port"] for port in gateway["egress"][0]["ports"]] == [443, 8443]


def test_alerts_and_dashboards_are_those_of_the_repository() -> None:
    """18.5.9"""
    manifests = variant("complete")
    [rule] = of_kind(manifests, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
    shown = {
        name: content
        for each in of_kind(manifests, "ConfigMap").values()
        if "grafana_dashboard" in each["metadata"]["labels"]
        for name, content in each["data"].items()
    }
    assert shown == {path.name: path.read_text() for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    [monitor] = of_kind(manifests, "PodMonitor").values()
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    named = {each["name"] for pod in pods(manifests).values() for each in container(pod).get("ports", ())}
    assert {each["port"] for each in endpoints} == named - {"link"}
    # The alert about a process that is away selects the job by its name.
    assert all({"targetLabel": "job", "replacement": "everstep"} in each["relabelings"] for each in endpoints)


def test_secrets_come_from_a_store_if_it_is_named() -> None:
    """18.5.7"""
    external = of_kind(variant("complete"), "ExternalSecret")
    assert {*external} == {"everstep", "everstep-providers"}
    [key] = external["everstep-providers"]["spec"]["data"]
    assert key == {"secretKey": "OPENAI_API_KEY", "remoteRef": {"key": "everstep/openai"}}
    assert external["everstep"]["spec"]["secretStoreRef"] == {"name": "vault", "kind": "ClusterSecretStore"}


def test_hosts_reach_their_services() -> None:
    """18.5.3: by an Ingress or by routes of the Gateway API."""
    manifests = variant("complete")
    services = of_kind(manifests, "Service")
    hosts = {"prod-everstep-api": "agents.example.com", "prod-everstep-gateway": "watch.example.com"}
    assert {*services} == {*hosts}
    for name, ingress in of_kind(manifests, "Ingress").items():
        [rule] = ingress["spec"]["rules"]
        assert rule["host"] == hosts[name]
        assert rule["http"]["paths"][0]["backend"]["service"] == {"name": name, "port": {"number": 80}}
    for name, route in of_kind(manifests, "HTTPRoute").items():
        assert route["spec"]["hostnames"] == [hosts[name]]
        assert route["spec"]["rules"][0]["backendRefs"] == [{"name": name, "port": 80}]


def test_values_and_their_schema_name_the_same() -> None:
    """18.5.4: each value has a type, and each type a default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(value: Any, type_: Any, where: str) -> None:
        if "properties" not in type_:
            return
        expected = {*type_["properties"]} - ({"global"} if not where else set())
        assert {*value} == expected, where
        for key in value:
            compare(value[key], type_["properties"][key], f"{where}.{key}")

    compare(values, schema, "")


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [version] = re.findall(r'^version = "(.*)"', Path(ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert chart["version"] == chart["appVersion"] == version
    assert os.path.islink(CHART / "files" / "alerts.yml")
