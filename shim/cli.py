"""The command ``shim``. Its stages are not written yet, so it has no commands."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stateful-pods", prog_name="shim")
def commands() -> None:
    """Fill a volume from an image once, and become the machine on it. No stage is written yet."""


def main(argv: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    commands(argv, prog_name="shim")
