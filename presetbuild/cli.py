"""The command. It holds no logic that a user of the library lacks: it parses, calls, shows, and chooses an exit code.

Standard output is the result and nothing else. What goes on is shown on standard error (console.py).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from presetbuild import __version__
from presetbuild.audit import audit
from presetbuild.build import DEFAULT_DESTINATION, Options, build_preset, resolve_build
from presetbuild.catalog import Catalog, load_catalog
from presetbuild.console import Console
from presetbuild.findings import Audit, State
from presetbuild.keyreport import describe_keys
from presetbuild.keys import default_signing_keys
from shim.errors import NotReady, Refused, StatefulPodsError, Unavailable, printable
from shim.image.model import Platform
from shim.image.reference import parse_reference

REFUSED, USAGE, NOT_READY, UNAVAILABLE = 1, 2, 3, 4
_CODES = ((Unavailable, UNAVAILABLE), (NotReady, NOT_READY))
_GRAVEST_FIRST = (REFUSED, UNAVAILABLE, NOT_READY)


class PlatformType(click.ParamType[Platform]):
    """OS/ARCH on the command line."""

    name = "OS/ARCH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Platform:
        try:
            return value if isinstance(value, Platform) else Platform.parse(value)
        except Refused as error:
            self.fail(str(error), param, ctx)


class Commands(click.Group):
    """A group whose first word may be a preset: what is no subcommand is built."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the subcommand in front, so that options may stand before it, and ``build`` where there is none."""
        word = self._first_word(args)
        if word is None:
            if args and not {"--help", "-h", "--version"} & set(args):
                args = ["build", *args]
        elif args[word] in self.commands:
            args = [args[word], *args[:word], *args[word + 1 :]]
        else:
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def _first_word(self, args: list[str]) -> int | None:
        takes_value = {
            name
            for command in self.commands.values()
            for param in command.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        skip = False
        for position, arg in enumerate(args):
            if skip:
                skip = False
            elif arg in takes_value:
                skip = True
            elif not arg.startswith("-"):
                return position
        return None


def _options(*names: str) -> Callable[[Any], Any]:
    """Decorate a command with some of the options that several share, in the order given."""
    known = {
        "catalog": click.option(
            "--catalog", metavar="FILE", type=click.Path(path_type=Path), help="Another catalog than the packaged one."
        ),
        "signing-keys": click.option(
            "--signing-keys", metavar="DIR", type=click.Path(path_type=Path), help="Another directory of signing keys."
        ),
        "mirror": click.option(
            "--mirror",
            metavar="URL",
            help="Read the upstream from here: https://, http://, file:// or a directory. Every check stays.",
        ),
        "platform": click.option(
            "--platform", "platforms", type=PlatformType(), multiple=True, help="Only this platform; repeatable."
        ),
        "json": click.option("--json", "as_json", is_flag=True, help="Print results as JSON lines."),
    }

    def decorate(function: Any) -> Any:
        for name in reversed(names):
            function = known[name](function)
        return function

    return decorate


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="presetbuild")
def commands() -> None:
    """Build presets: verified upstream root filesystems as OCI images, published by digest.

    A first word that is no command is a preset: `presetbuild debian-trixie` builds and publishes it.

    \b
    Exit codes: 0 published (or was already), 1 refused, 2 usage, 3 upstream not ready, 4 unavailable, try later.
    """


@commands.command()
@click.argument("presets", nargs=-1, required=True, metavar="PRESET...")
@_options("catalog", "signing-keys", "mirror")
@click.option(
    "--to",
    metavar="DEST",
    default=DEFAULT_DESTINATION,
    show_default=True,
    help="oci:DIR (an image layout per repository below it), or a registry prefix that repository names are added to.",
)
@_options("platform")
@click.option("--allow-older", is_flag=True, help="Let tags move to a build that is older than the one they name.")
@_options("json")
def build(
    presets: tuple[str, ...],
    catalog: Path | None,
    signing_keys: Path | None,
    mirror: str | None,
    to: str,
    platforms: tuple[Platform, ...],
    allow_older: bool,
    as_json: bool,
) -> None:
    """Verify, package and publish each PRESET; print its digest."""
    with Console(sys.stderr) as console:
        options = Options(signing_keys, mirror, platforms, allow_older, progress=console.progress, tell=console.tell)

        def one(book: Catalog, name: str) -> None:
            published = build_preset(book, name, to, options)
            columns = (published.preset, published.build, published.reference)
            fields = {
                "preset": published.preset,
                "build": published.build,
                "repository": published.repository,
                "digest": str(published.digest),
                "tags": list(published.tags),
                "published": published.new,
            }
            _print(fields, columns, as_json=as_json)

        _each(presets, catalog, console, one)


@commands.command()
@click.argument("presets", nargs=-1, required=True, metavar="PRESET...")
@_options("catalog", "mirror", "platform", "json")
def resolve(
    presets: tuple[str, ...],
    catalog: Path | None,
    mirror: str | None,
    platforms: tuple[Platform, ...],
    as_json: bool,
) -> None:
    """Print the build that the upstream offers for each PRESET. Nothing is verified or fetched."""
    with Console(sys.stderr) as console:
        options = Options(mirror=mirror, platforms=platforms, progress=console.progress, tell=console.tell)

        def one(book: Catalog, name: str) -> None:
            preset = book.preset(name)
            _, found = resolve_build(preset, options)
            names = [str(platform) for platform in found.directories]
            fields = {"preset": name, "build": found.name, "platforms": names}
            _print(fields, (name, found.name, ",".join(names)), as_json=as_json)

        _each(presets, catalog, console, one)


@commands.command()
@_options("catalog", "signing-keys", "json")
def keys(catalog: Path | None, signing_keys: Path | None, as_json: bool) -> None:
    """Confirm that the signing keys are the pinned ones, and say what a reviewer must know of each."""
    with Console(sys.stderr) as console:

        def run() -> None:
            for report in describe_keys(signing_keys or default_signing_keys(), load_catalog(catalog)):
                click.echo(report.to_json() if as_json else report.to_text())

        _exit(_attempt(console, "", run))


@commands.command()
@click.argument("reference", metavar="REFERENCE")
@_options("catalog", "signing-keys", "mirror")
@click.option(
    "--require",
    "required",
    type=click.Choice(["provenance"]),
    multiple=True,
    help="Exit 1 if this is unproven, too: that the layers are the signed archives.",
)
@click.option("--offline", is_flag=True, help="Do not ask the upstream; what only it can prove is listed as unproven.")
@_options("json")
def verify(
    reference: str,
    catalog: Path | None,
    signing_keys: Path | None,
    mirror: str | None,
    required: tuple[str, ...],
    offline: bool,
    as_json: bool,
) -> None:
    """Read a published preset back and check the whole chain.

    REFERENCE is HOST/REPOSITORY[:TAG][@DIGEST], or oci:DIR[:TAG|@DIGEST] for an image layout.
    """
    try:
        parsed = parse_reference(reference)
    except Refused as error:
        raise click.BadParameter(str(error), param_hint="REFERENCE") from error
    with Console(sys.stderr) as console:
        options = Options(signing_keys, mirror, progress=console.progress, tell=console.tell)

        def run() -> None:
            result = audit(parsed, load_catalog(catalog), options, offline=offline)
            console.clear()
            _print_audit(result, as_json=as_json)
            bad = [
                finding
                for finding in result.findings
                if finding.state is State.DIFFERS
                or (finding.state is State.UNPROVEN and finding.subject.endswith(required))
            ]
            if bad:
                more = f" (and {len(bad) - 1} more, listed above)" if bad[1:] else ""
                raise Refused(f"{reference} does not hold: {bad[0].subject}: {bad[0].sentence}{more}")

        _exit(_attempt(console, "", run))


@commands.command()
@click.option("--debian", is_flag=True, help="Use a real Debian root filesystem, made by mmdebstrap (takes a minute).")
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep the image layout here instead of a temporary place.",
)
def demo(debian: bool, to: Path | None) -> None:
    """Do the whole job with nothing but this machine, and show two attacks being refused."""
    from presetbuild.demo import run_demo  # noqa: PLC0415 - nothing else needs a web server and a key generator

    with Console(sys.stderr) as console:
        _exit(_attempt(console, "", lambda: run_demo(click.echo, directory=to, debian=debian)))


def main(argv: list[str] | None = None) -> None:
    """Run the command and exit with its code: 130 when it is interrupted, 1 when its result cannot be written."""
    try:
        commands.main(argv, prog_name="presetbuild", standalone_mode=False)
        if sys.stdout is None:  # closed by whoever started us
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted: no tag was moved to anything incomplete; the next run completes", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        # What cannot be written to standard output is not written there again when python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            print(f"refused: cannot write the result: {error.strerror}", file=sys.stderr)
        sys.exit(REFUSED)


def _each(presets: Iterable[str], catalog: Path | None, console: Console, one: Callable[[Catalog, str], None]) -> None:
    """Try every preset, and exit with the gravest code."""
    book: list[Catalog] = []
    codes = [_attempt(console, "", lambda: book.append(load_catalog(catalog)))]
    if book:
        codes += [_attempt(console, name, partial(one, book[0], name)) for name in dict.fromkeys(presets)]
    _exit(next((code for code in _GRAVEST_FIRST if code in codes), 0))


def _attempt(console: Console, name: str, action: Callable[[], object]) -> int:
    """Run `action`; show what it raised as a sentence, and return the exit code that stands for it."""
    try:
        action()
    except StatefulPodsError as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), REFUSED)
        word = {UNAVAILABLE: "unavailable", NOT_READY: "not ready", REFUSED: "refused"}[code]
        sentence = str(error)
        shown = printable(name)
        console.tell(f"{word}: {sentence if sentence.startswith(shown) else f'{shown}: {sentence}'}")
        return code
    return 0


def _exit(code: int) -> None:
    if code:
        raise SystemExit(code)


def _print(fields: dict[str, Any], columns: Iterable[str], *, as_json: bool) -> None:
    click.echo(json.dumps(fields) if as_json else "\t".join(columns))


def _print_audit(result: Audit, *, as_json: bool) -> None:
    if as_json:
        findings = [
            {"state": finding.state, "subject": finding.subject, "sentence": finding.sentence}
            for finding in result.findings
        ]
        fields = {
            "reference": result.reference,
            "digest": str(result.digest) if result.digest else None,
            "preset": result.preset,
            "build": result.build,
            "holds": result.holds,
            "findings": findings,
        }
        click.echo(json.dumps(fields))
        return
    width = max((len(finding.subject) for finding in result.findings), default=0)
    for finding in result.findings:
        click.echo(f"{finding.state:<9} {finding.subject:<{width}}  {finding.sentence}")
