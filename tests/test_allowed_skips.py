"""The rule about skips, tried on runs of pytest itself."""

from __future__ import annotations

import pytest

SKIPPING = """
    import pytest

    @pytest.mark.parametrize("n", [1, 2])
    def test_skips(n):
        pytest.skip("no tool [x]")

    def test_passes():
        pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with the plugin, an empty list of allowed skips, and CI=true."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # its import would be most of each run's time
    pytester.makeconftest('pytest_plugins = ["tests.allowed_skips"]')
    allow(pytester, "# nothing\n")
    return pytester


def allow(pytester: pytest.Pytester, text: str) -> None:
    (pytester.path / "tests").mkdir(exist_ok=True)
    (pytester.path / "tests" / "allowed-skips").write_text(text, encoding="utf-8")


def test_a_skip_that_is_not_listed_fails_the_run_and_is_named(run: pytest.Pytester) -> None:
    run.makepyfile(test_it=SKIPPING)
    result = run.runpytest("-ra")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skips that are not allowed*", "test_it.py::test_skips[[]1]  # no tool [[]x]"])


def test_the_runners_own_summary_stays_the_last_line(run: pytest.Pytester) -> None:
    run.makepyfile(test_it=SKIPPING)
    result = run.runpytest()
    assert "1 passed, 2 skipped" in result.outlines[-1]


@pytest.mark.parametrize("listed", ["test_it.py::test_skips[*]", "test_it.py::*", "*"])
def test_a_skip_that_is_listed_with_its_reason_is_allowed(run: pytest.Pytester, listed: str) -> None:
    run.makepyfile(test_it=SKIPPING)
    allow(run, f"{listed}  # no tool [x]\n")
    assert run.runpytest().ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    "entries",
    [
        "test_it.py::test_skips[1]  # no tool [x]",
        "test_it.py::test_skips*  # no tool",
        "test_it.py::test_skips*  # no tool [x] here",
        "test_it.py::test_skips  # no tool [x]",
    ],
    ids=["one of two", "shorter reason", "longer reason", "no wildcard"],
)
def test_another_test_or_another_reason_is_not_covered(run: pytest.Pytester, entries: str) -> None:
    run.makepyfile(test_it=SKIPPING)
    allow(run, entries)
    assert run.runpytest().ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\npytest.skip('absent', allow_module_level=True)",
        "import pytest\npytest.importorskip('no_such_module_anywhere')",
        "import pytest\n@pytest.mark.skip\ndef test_it(): pass",
        "import pytest\n@pytest.mark.skipif(True, reason='absent')\ndef test_it(): pass",
        "import pytest\n@pytest.fixture\ndef tool(): pytest.skip('absent')\ndef test_it(tool): pass",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.skipTest('absent')",
        "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False",
        "import pytest\n@pytest.mark.xfail\ndef test_it(): pass",
    ],
    ids=["module", "import", "mark", "condition", "fixture", "unittest", "xfail that fails", "xfail that passes"],
)
def test_every_way_of_not_running_a_test_counts(run: pytest.Pytester, source: str) -> None:
    run.makepyfile(test_it=source)
    assert run.runpytest().ret == pytest.ExitCode.TESTS_FAILED


def test_a_failure_stays_a_failure(run: pytest.Pytester) -> None:
    run.makepyfile(test_it="def test_it(): assert False")
    assert run.runpytest().ret == pytest.ExitCode.TESTS_FAILED


def test_a_line_that_is_not_understood_stops_the_run(run: pytest.Pytester) -> None:
    run.makepyfile(test_it="def test_it(): pass")
    allow(run, "test_it.py::test_it\n")
    result = run.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*allowed-skips, line 1: expected*"])


@pytest.mark.parametrize("value", ["", "false"])
def test_outside_of_ci_a_skip_is_only_a_skip(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CI", value)
    run.makepyfile(test_it=SKIPPING)
    assert run.runpytest().ret == pytest.ExitCode.OK
