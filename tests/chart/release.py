"""``python -m tests.chart.release DIRECTORY``: packages the chart as a release does, or says what is not ready.

A chart that is released names the shim and every preset by digest. As long as one is a placeholder there is no package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import helm_python as helm
import yaml

from tests.chart.charts import CHART


class Unreleased(Exception):
    """The chart still has placeholders; the message names them and what to do."""


def placeholders(chart: Path = CHART) -> list[str]:
    """Return what is still a placeholder in `chart`, as FILE: KEY."""
    shim = yaml.safe_load((chart / "values.yaml").read_text())["shim"]["image"]
    presets = yaml.safe_load((chart / "presets.yaml").read_text())
    found = [f"presets.yaml: {name}.reference" for name, preset in presets.items() if not preset["reference"]]
    return found if shim else ["values.yaml: shim.image", *found]


def package(destination: Path, chart: Path = CHART) -> Path:
    """Package `chart` into `destination` and return the archive; raises `Unreleased` while it has placeholders."""
    if found := placeholders(chart):
        raise Unreleased(
            f"the chart is not packaged, because these are placeholders: {', '.join(found)}. Publish the image of each "
            "and write its reference, HOST/REPOSITORY@sha256:DIGEST, there"
        )
    return Path(helm.package(chart, destination=destination))


if __name__ == "__main__":
    try:
        print(package(Path(sys.argv[1])))
    except Unreleased as error:
        sys.exit(str(error))
