"""The figures of a run, for people."""

import os
from collections import Counter

from tests.acceptance.storm.scene import Scene
from tests.cluster.features import FLOOD, Features
from tests.cluster.kills import KillsInTurn
from tests.cluster.throughput import Throughput


def say(text: str) -> None:
    print(text, flush=True)


def say_throughput(embedded: Throughput, cluster: Throughput) -> None:
    say(f"{'':24}{'embedded':>12}{'cluster':>12}{'ratio':>10}   (load {os.getloadavg()[0]:.1f})")
    rows = (
        ("seconds, one execution", embedded.seconds, cluster.seconds),
        ("executions per second", embedded.per_second, cluster.per_second),
    )
    for name, first, second in rows:
        say(f"{name:24}{first:>12.3f}{second:>12.3f}{second / first:>10.2f}")


def say_kills(scene: Scene, weather: KillsInTurn) -> None:
    accepted = [each for each in scene.operations if each.is_accepted]
    read = sum(len(each.received.stored) for each in scene.viewers)
    say(f"{len(weather.victims)} processes were killed: {', '.join(each.name for each in weather.victims)}")
    if weather.ended:
        say(f"ended by themselves, and started again: {dict(Counter(weather.ended))}")
    say(
        f"{len(accepted)} operations were acknowledged, {len(scene.operations) - len(accepted)} refused;"
        f" {len(scene.viewers)} viewers read {read} envelopes"
    )
    say(f"operations: {scene.counts}")


def say_features(features: Features) -> None:
    say(f"search attributes: {features.found_completed} completed executions found in Temporal")
    say(f"payloads: {features.payloads} read, {features.plain_payloads.total()} of them not encrypted")
    say(
        f"fairness: {features.fair_backlog} tasks waited; another tenant's execution was number "
        f"{features.place_of_other} of {FLOOD + 1} to be served"
    )


def say_faults(faults: list[str]) -> None:
    say(f"lost, doubled or wrong: {len(faults)}")
    for fault in faults[:50]:
        say(f"  {fault}")
