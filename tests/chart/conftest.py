"""What the chart's tests share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.chart.charts import CHART
from tests.chart.helms import _helm_program, helm_binary

__all__ = ["_helm_program", "changed_chart", "helm_binary"]

Change = Callable[[str], str]
ChangedChart = Callable[..., Path]


@pytest.fixture
def changed_chart(tmp_path: Path) -> ChangedChart:
    """A function that copies the chart, or another one, and changes the text of some of its files."""

    def change(changes: Mapping[str, Change], chart: Path = CHART) -> Path:
        copy = tmp_path / f"chart-{len(list(tmp_path.glob('chart-*')))}"
        shutil.copytree(chart, copy)
        for name, changed in changes.items():
            before = (copy / name).read_text()
            assert changed(before) != before, f"nothing changed in {name}"
            (copy / name).write_text(changed(before))
        return copy

    return change
