"""The command. It holds no logic that a user of the library lacks: it parses, calls, shows, and chooses an exit code.

Each option has an environment variable, because a pod passes those. Standard output is the result and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

import shim
from shim.console import FORMATS, Console
from shim.errors import FormatError, Refused, StatefulPodsError, Unavailable, printable

FAILED, UNAVAILABLE = 1, 4
TERMINATION_LOG = Path("/dev/termination-log")  # where Kubernetes looks for a container's last words
_LAST_WORDS = 4096  # bytes; what Kubernetes keeps of them


def _option(name: str, variable: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(f"--{name}", envvar=f"SHIM_{variable}", show_envvar=True, **more)


def _command(function: Any) -> Any:
    """Make `function` a command that takes a root filesystem, and a console for what it says."""
    form = _option(
        "log-format", "LOG_FORMAT", type=click.Choice(FORMATS), default="plain", help="How it says what it does."
    )
    argument = click.argument(
        "rootfs", type=click.Path(path_type=Path), envvar="SHIM_ROOTFS", default=Path("/mnt/rootfs"), required=False
    )
    return commands.command()(argument(form(function)))


def _machine_options(function: Any) -> Any:
    for name, what in (("namespace", "its namespace"), ("release", "its Helm release"), ("machine", "its name")):
        decorate = _option(
            name, name.upper(), metavar="NAME", default="local", show_default=True, help=f"The machine: {what}."
        )
        function = decorate(function)
    return function


def _hostname(default: str) -> Callable[[Any], Any]:
    return _option("hostname", "HOSTNAME", metavar="NAME", help=f"The machine's host name. [default: {default}]")


_volumes = _option(
    "volume",
    "VOLUMES",
    metavar="PATH",
    multiple=True,
    type=click.Path(),  # so that the variable is split at colons, which no mount path of a pod can hold
    help="Must be a mount point inside the new root; repeatable. [SHIM_VOLUMES: joined with colons]",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(shim.__version__, prog_name="shim")
def commands() -> None:
    """Fill a volume with a root filesystem once, prepare it, and become the machine on it.

    ROOTFS is where the volume is mounted (SHIM_ROOTFS; default /mnt/rootfs).

    \b
    Exit codes: 0 done, 1 refused or failed, 2 usage, 4 unavailable, try later.
    """


@_command
@_machine_options
@_option("source-kind", "SOURCE_KIND", type=click.Choice(("oci", "lxc")), help="[default: by what else is given]")
@_option(
    "source-reference",
    "SOURCE_REFERENCE",
    metavar="REF",
    help="An image: HOST/REPOSITORY[:TAG][@DIGEST] or oci:DIR[:TAG].",
)
@_option("source-preset", "SOURCE_PRESET", metavar="NAME", help="The preset that led to the image, for the record.")
@_option("source-platform", "SOURCE_PLATFORM", metavar="OS/ARCH", help="[default: this node's]")
@_option("source-url", "SOURCE_URL", metavar="URL", help="A root filesystem archive: an https URL or a path.")
@_option("source-sha256", "SOURCE_SHA256", metavar="HEX", help="The SHA-256 of that archive.")
@_option("chart-version", "CHART_VERSION", metavar="VERSION", help="The chart that asks for it, for the record.")
def seed(rootfs: Path, log_format: str, chart_version: str | None, **options: str | None) -> None:
    """Fill the volume from a source, unless that was done before."""
    with _reporting(log_format) as console:
        if shim.state(rootfs) is shim.State.SEEDED:  # whatever the options say
            record = shim.read_record(rootfs)
            moment = f"{record.seeded_at:%Y-%m-%dT%H:%M:%SZ}"
            console.tell(f"{rootfs} was seeded from {record.source} at {moment}; there is nothing to do")
            return
        source, machine = _source(options), _machine(options)
        shim.seed(rootfs, source, machine, chart_version=chart_version, tell=console.tell, progress=console.progress)


@_command
@_machine_options
@_option(
    "identity",
    "IDENTITY",
    type=click.Choice(("new", "keep")),
    default="new",
    show_default=True,
    help="For a volume that was seeded for another machine: new if it is a clone, keep if the machine moved.",
)
def prepare(rootfs: Path, log_format: str, identity: str, **options: str | None) -> None:
    """Give the machine an identity of its own, once."""
    with _reporting(log_format) as console:
        shim.prepare(rootfs, _machine(options), identity, tell=console.tell)


@_command
@_machine_options
@_hostname("the machine's name")
def customize(rootfs: Path, log_format: str, hostname: str | None, **options: str | None) -> None:
    """Write the pod's host name, hosts file and resolver into the machine."""
    with _reporting(log_format) as console:
        shim.customize(rootfs, hostname or _machine(options).name, tell=console.tell)


@_command
@_machine_options
@_option("provisioning", "PROVISIONING", type=click.Choice(("cloud-init", "exec")), default="exec", show_default=True)
@_option("provisioning-revision", "PROVISIONING_REVISION", metavar="TEXT", default="", help="Another one starts over.")
@_option(
    "provisioning-dir",
    "PROVISIONING_DIR",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("/provisioning"),
    show_default=True,
    help="The material: user-data, ssh-authorized-keys, …",
)
def provision(
    rootfs: Path,
    log_format: str,
    provisioning: str,
    provisioning_revision: str,
    provisioning_dir: Path,
    **options: str | None,
) -> None:
    """Hand the machine's cloud-init what it shall do."""
    with _reporting(log_format) as console:
        machine = _machine(options)
        shim.provision(rootfs, provisioning, provisioning_dir, provisioning_revision, machine, tell=console.tell)


@_command
@_machine_options
@_hostname("the machine's name")
@_volumes
def boot(rootfs: Path, log_format: str, hostname: str | None, volume: tuple[str, ...], **options: str | None) -> None:
    """Become the machine's init. For PID 1 of a container."""
    with _reporting(log_format):
        shim.boot(rootfs, hostname=hostname or _machine(options).name, volumes=volume)


@_command
@_hostname("what its /etc/hostname says")
@_volumes
@_option(
    "stop-seconds",
    "STOP_SECONDS",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How long a power-off may take.",
)
@click.option("--userns", is_flag=True, help="In a user namespace with a range of IDs of its own.")
def run(
    rootfs: Path, log_format: str, hostname: str | None, volume: tuple[str, ...], stop_seconds: int, userns: bool
) -> None:
    """Boot a seeded directory on this host, in fresh namespaces; Ctrl-C powers it off, twice ends it at once."""
    with _reporting(log_format) as console:
        ending = shim.run_guest(
            rootfs, hostname=hostname, volumes=volume, userns=userns, stop_seconds=stop_seconds, tell=console.tell
        )
        console.tell(f"the machine {'was ' * (ending is shim.Ending.KILLED)}{ending.value}")


@_command
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def state(rootfs: Path, log_format: str, as_json: bool) -> None:
    """Print what the volume holds, and what it was seeded from."""
    with _reporting(log_format):
        found = shim.state(rootfs)
        record, problem = None, None
        if found is shim.State.SEEDED:
            try:
                record = shim.read_record(rootfs)
            except FormatError as error:
                problem = error
        if as_json:
            click.echo(json.dumps({"state": found.value, "record": record and record.to_json()}))
        else:
            click.echo("\n".join(_described(found, record)))
        if problem:
            raise problem


def main(argv: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    try:
        commands(argv, prog_name="shim", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        _leave(error.format_message())
        raise SystemExit(error.exit_code) from error
    except (click.Abort, KeyboardInterrupt) as error:
        raise SystemExit(130) from error


@contextmanager
def _reporting(form: str) -> Iterator[Console]:
    """Give a console; show what is raised as a sentence, and exit with the code that stands for it."""
    console = Console(sys.stderr, form)
    try:
        yield console
    except (StatefulPodsError, OSError) as error:
        sentence = " ".join([str(error), *getattr(error, "__notes__", ())])
        console.fail(sentence)
        _leave(sentence)
        raise SystemExit(UNAVAILABLE if isinstance(error, Unavailable) else FAILED) from error


def _leave(sentence: str) -> None:
    """Write the last words where a pod's status shows them."""
    with suppress(OSError), TERMINATION_LOG.open("r+b") as log:
        log.truncate()
        log.write(printable(sentence, _LAST_WORDS).encode()[:_LAST_WORDS])


def _machine(options: dict[str, Any]) -> shim.Machine:
    try:
        return shim.Machine(options["namespace"], options["release"], options["machine"])
    except Refused as error:
        raise click.UsageError(str(error)) from error


def _source(options: dict[str, str | None]) -> shim.Source:
    kind, reference, url = (options[f"source_{name}"] for name in ("kind", "reference", "url"))
    if not kind:
        if bool(reference) == bool(url):
            raise click.UsageError("name one source: --source-reference for an image, --source-url for an archive")
        kind = "oci" if reference else "lxc"
    platform = options["source_platform"]
    try:
        return shim.Source(
            kind,
            reference=reference,
            preset=options["source_preset"],
            platform=shim.Platform.parse(platform) if platform else None,
            url=url,
            sha256=(options["source_sha256"] or "").lower() or None,
        )
    except Refused as error:
        raise click.UsageError(str(error)) from error


def _described(found: shim.State, record: shim.Record | None) -> Iterator[str]:
    yield f"state    {found.value}"
    if record:
        yield f"source   {record.source}" + f" (preset {record.source.preset})" * bool(record.source.preset)
        yield f"digest   {record.source.digest or f'sha256:{record.source.sha256}'}"
        yield f"seeded   {record.seeded_at:%Y-%m-%dT%H:%M:%SZ}"
        yield f"machine  {record.machine}"
        if record.cloned_from:
            yield f"clone of {record.cloned_from}"
        if record.chart_version:
            yield f"chart    {record.chart_version}"
