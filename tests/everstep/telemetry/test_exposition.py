"""The page of a process in the text format of Prometheus."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge as LibraryGauge
from prometheus_client.parser import text_string_to_metric_families

from everstep.telemetry import exposition, metrics
from everstep.telemetry.instruments import Counter

PAGE = Path(__file__).parents[3] / "docs" / "observability.md"


def exposed_names() -> dict[str, tuple[str, ...]]:
    """The labels of each metric, by the name of its samples."""
    return {
        f"{each.name}{'_total' if isinstance(each, Counter) else ''}": each.labels for each in metrics.ALL
    }


def test_every_metric_is_on_the_page_of_every_process() -> None:
    """18.3.1"""
    families = {each.name: each for each in text_string_to_metric_families(exposition.render().decode())}

    for each in metrics.ALL:
        assert families[each.name].documentation == each.text
    assert {"process_cpu_seconds", "process_resident_memory_bytes"} <= families.keys()


def test_the_contract_of_names_and_labels_is_kept() -> None:
    """18.3.1: dashboards, alerts and other programs rely on these."""
    promised = {
        "everstep_executions_total": ("agent", "status"),
        "everstep_steps_total": (),
        "everstep_model_calls_total": ("preset", "outcome"),
        "everstep_model_call_seconds": ("preset",),
        "everstep_tokens_total": ("preset", "kind"),
        "everstep_cost_usd_total": ("preset",),
        "everstep_tool_calls_total": ("tool", "outcome"),
        "everstep_tool_failures_total": ("tool",),
        "everstep_open_requests": ("kind",),
        "everstep_open_requests_age_seconds": ("kind",),
        "everstep_gateway_viewers": (),
        "everstep_queue_depth": ("tenant",),
        "everstep_activity_slots": ("state",),
        "everstep_event_loop_lag_seconds": (),
    }
    assert promised.items() <= exposed_names().items()


def test_the_page_of_the_documentation_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(everstep_\w+)(?:\{([\w, ]+)\})?` \|", PAGE.read_text(), re.MULTILINE)
    documented = {name: tuple(labels.split(", ")) if labels else () for name, labels in rows}

    assert exposed_names().items() <= documented.items()


def test_parts_of_a_process_are_on_its_page_once() -> None:
    registry = CollectorRegistry()
    LibraryGauge("part_of_a_test", "A part", registry=registry)

    with exposition.publish_registry(registry):
        assert exposition.render(registry).count(b"\npart_of_a_test 0.0") == 1
    assert b"part_of_a_test" not in exposition.render()
