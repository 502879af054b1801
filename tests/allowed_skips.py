"""A pytest plugin: where CI=true, a skip that `tests/allowed-skips` does not list with its reason fails the run.

A skipped test looks like a passing one in a summary that nobody reads, so a tool that vanished from the machine would
silently take its tests with it. An expected failure is refused for the same reason.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ALLOWED_SKIPS = Path("tests", "allowed-skips")
_ENTRY = re.compile(r"(?P<test>\S.*?)  +# (?P<reason>.+)")


class AllowedSkips:
    """What may be skipped, read from the text of the list: ``TEST-ID  # REASON``, with ``*`` for any text in the ID."""

    def __init__(self, text: str) -> None:
        self._entries: list[tuple[re.Pattern[str], str]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            entry = _ENTRY.fullmatch(line.rstrip())
            if entry is None:
                raise pytest.UsageError(f"{ALLOWED_SKIPS}, line {number}: expected 'TEST-ID  # REASON', found {line!r}")
            # Not fnmatch: a parametrised ID has brackets, which would be read as a set of characters.
            test = re.escape(entry["test"]).replace(r"\*", ".*")
            self._entries.append((re.compile(test, re.DOTALL), entry["reason"]))

    def allows(self, test: str, reason: str) -> bool:
        """Tell whether the skip of `test` stands in the list with exactly this `reason`."""
        return any(reason == allowed and pattern.fullmatch(test) for pattern, allowed in self._entries)


class Plugin:
    """Collects the skips of a run and fails it at its end unless every one is allowed."""

    def __init__(self, allowed: AllowedSkips) -> None:
        self._allowed = allowed
        self._refused: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped and not hasattr(report, "wasxfail"):
            return
        if hasattr(report, "wasxfail"):
            self._refused[report.nodeid] = f"expected to fail: {report.wasxfail}"
            return
        skip = report.longrepr
        reason = str(skip[2] if isinstance(skip, tuple) else skip).removeprefix("Skipped: ")
        if not self._allowed.allows(report.nodeid, reason):
            self._refused[report.nodeid] = reason

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._refused:
            return
        terminalreporter.section("skips that are not allowed", red=True)
        for test, reason in sorted(self._refused.items()):
            terminalreporter.line(f"{test}  # {reason}")
        terminalreporter.line(f"Make them run, or list each in {ALLOWED_SKIPS}: with CI=true no other test is skipped.")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI", "").lower() not in ("true", "1"):
        return
    file = config.rootpath / ALLOWED_SKIPS
    config.pluginmanager.register(Plugin(AllowedSkips(file.read_text(encoding="utf-8"))), "allowed-skips")
