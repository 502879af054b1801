"""Fills a volume with a root filesystem once, prepares it, and becomes the machine on it."""

from shim.boot import boot
from shim.customize import Customized, customize
from shim.errors import (
    FormatError,
    NotFound,
    NotReady,
    Refused,
    StatefulPodsError,
    Unavailable,
    VerificationError,
)
from shim.image.model import Platform
from shim.local import Ending, LocalGuest, run_guest
from shim.prepare import Prepared, prepare
from shim.provision import Provisioned, provision
from shim.seed import Seeded, seed
from shim.spec import Machine, Source
from shim.volume import Record, State, read_record, state

__version__ = "0.1.0"

__all__ = [
    "Customized",
    "Ending",
    "FormatError",
    "LocalGuest",
    "Machine",
    "NotFound",
    "NotReady",
    "Platform",
    "Prepared",
    "Provisioned",
    "Record",
    "Refused",
    "Seeded",
    "Source",
    "State",
    "StatefulPodsError",
    "Unavailable",
    "VerificationError",
    "boot",
    "customize",
    "prepare",
    "provision",
    "read_record",
    "run_guest",
    "seed",
    "state",
]
