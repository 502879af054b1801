"""From a signed upstream root filesystem to an OCI image, by digest."""

from presetbuild.audit import audit
from presetbuild.build import Options, build_preset
from presetbuild.catalog import Catalog, KeyPin, Preset, Upstream, load_catalog
from presetbuild.findings import Audit, Finding, State
from presetbuild.publish import Published

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Catalog",
    "Finding",
    "KeyPin",
    "Options",
    "Preset",
    "Published",
    "State",
    "Upstream",
    "audit",
    "build_preset",
    "load_catalog",
]
