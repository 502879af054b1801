"""The chart's part of ``make bench``."""

from __future__ import annotations

import statistics
import time

from tests.chart.charts import CHART, NAMESPACE, RELEASE, Values, load, one

MACHINES, ROUNDS = 100, 5


def hundred() -> Values:
    """Return values for a hundred machines, each with what most of them have."""
    machine = {
        "hostname": "web",
        "volumes": {"data": {"mountPath": "/srv", "size": "10Gi"}},
        "network": {"ports": {"http": {"port": 80}, "https": {"port": 443}}, "ingress": "declared"},
        "cloudInit": {"user": {"value": "ada"}, "packages": {"value": ["nginx", "curl"]}},
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
    }
    values = one(machine)
    values["machines"] = {f"m{number}": values["machines"]["web"] for number in range(MACHINES)}
    return values


def render_hundred() -> float:
    """Return the seconds, the median of a few rounds, that a hundred machines take to render, NOTES.txt included."""
    chart, values = load(CHART), hundred()
    rounds = []
    for _ in range(ROUNDS):
        start = time.monotonic()
        chart.render(values=values, name=RELEASE, namespace=NAMESPACE)
        rounds.append(time.monotonic() - start)
    return statistics.median(rounds)


if __name__ == "__main__":
    print(f"chart: {MACHINES} machines render in {render_hundred():.2f} s; to reach: 1")
