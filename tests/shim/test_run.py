"""What the one place that starts processes promises: clean environments, errors that explain, no child left behind."""

from __future__ import annotations

import gc
import io
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shim.errors import FormatError, Refused, VerificationError
from shim.image.digest import Digest, VerifyingReader
from shim.run import Reader, piped, run

PYTHON = sys.executable
BIG = bytes(range(256)) * 40_000  # 10 MB, far more than the pipes hold


def drain(reader: Reader, amount: int = 1 << 20) -> bytes:
    return b"".join(iter(lambda: reader.read(amount), b""))


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def script(text: str) -> list[str]:
    return [PYTHON, "-c", text]


class Failing:
    """A source that fails after some bytes."""

    def __init__(self, error: Exception, good: int = 3) -> None:
        self.error, self.left = error, good

    def read(self, amount: int, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return bytes(amount)


def test_run_returns_what_the_tool_wrote() -> None:
    assert run(["tr", "a-z", "A-Z"], data=b"machine", what="shouting") == b"MACHINE"


def test_run_moves_more_than_a_pipe_holds_in_both_directions() -> None:
    assert run(["cat"], data=BIG, what="copying") == BIG


def test_run_tells_command_exit_code_and_what_was_said() -> None:
    with pytest.raises(Refused) as caught:
        run(["sh", "-c", "echo one >&2; printf 'two\\033[2J' >&2; exit 7"], what="asking sh")
    assert str(caught.value) == (
        r"""asking sh failed: sh -c 'echo one >&2; printf '"'"'two\033[2J'"'"' >&2; exit 7' """
        r"""ended with exit code 7: one; two\x1b[2J"""
    )


def test_run_tells_the_signal_that_killed_a_tool() -> None:
    with pytest.raises(Refused, match=r"was killed by signal 9: \(it said nothing\)"):
        run(["sh", "-c", "kill -9 $$"], what="dying")


@pytest.mark.parametrize(("tool", "package"), [("xz", "xz-utils"), ("tar", "tar"), ("gpg", "gnupg")])
def test_a_missing_tool_is_named_with_the_package_to_install(
    tool: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = f"unpacking needs {tool}, which is not installed; on Debian: apt-get install {package}$"
    with pytest.raises(Refused, match=expected):
        run([tool], what="unpacking")
    before = descriptors()
    with pytest.raises(Refused, match=expected), piped([tool], io.BytesIO(), "unpacking"):
        pass
    assert descriptors() == before


def test_a_tool_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    (tmp_path / "tool").touch(mode=0o644)
    with pytest.raises(Refused, match="which cannot be executed: Permission denied"):
        run([str(tmp_path / "tool")], what="unpacking")


def test_a_child_gets_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XZ_OPT", "XZ_DEFAULTS", "TAR_OPTIONS", "GZIP", "ZSTD_CLEVEL", "LD_PRELOAD_X", "LANG", "LC_MESSAGES"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TMPDIR", "/somewhere")
    monkeypatch.setenv("HOME", "/home/somebody")
    expected = {"PATH": os.environ["PATH"], "HOME": "/home/somebody", "TMPDIR": "/somewhere", "LC_ALL": "C"}
    printed = run(["env"], what="listing the environment").decode().splitlines()
    assert dict(line.split("=", 1) for line in printed) == expected
    with piped(["env"], io.BytesIO(), "listing the environment") as reader:
        assert drain(reader).decode().splitlines() == printed


@pytest.mark.parametrize("amount", [1, 4096, 1 << 20, 1 << 24])
def test_a_stream_goes_through_a_filter_whole(amount: int) -> None:
    data = BIG[:10_000] if amount == 1 else BIG
    with piped(["cat"], io.BytesIO(data), "copying") as reader:
        assert drain(reader, amount) == data
        assert reader.read(amount) == b""


def test_a_read_fills_what_was_asked_for() -> None:
    with piped(["cat"], io.BytesIO(BIG), "copying") as reader:
        assert len(reader.read(3_000_000)) == 3_000_000


def test_a_filter_that_writes_far_more_than_it_reads_does_not_deadlock() -> None:
    text = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(bytes(20_000_000)); print(len(d))"
    with piped(script(text), io.BytesIO(BIG), "inflating") as reader:
        assert drain(reader) == bytes(20_000_000) + b"%d\n" % len(BIG)


def test_a_flood_of_messages_neither_deadlocks_nor_fills_memory() -> None:
    text = "import sys; sys.stderr.write('x' * 5_000_000); sys.stdin.buffer.read(); sys.exit(3)"
    with piped(script(text), io.BytesIO(BIG), "filtering") as reader, pytest.raises(FormatError) as caught:
        drain(reader)
    assert "exit code 3: xxx" in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_flood_of_messages_behind_the_output_does_not_deadlock() -> None:
    text = "import os, sys; os.close(1); sys.stdin.read(); sys.stderr.write('x' * 5_000_000); sys.exit(3)"
    with piped(script(text), io.BytesIO(), "filtering") as reader, pytest.raises(FormatError, match="exit code 3: xxx"):
        drain(reader)


def test_a_grandchild_that_keeps_the_messages_open_does_not_hold_up_the_end() -> None:
    with piped(["sh", "-c", "sleep 60 >&- <&- & cat"], io.BytesIO(b"data"), "copying") as reader:
        assert drain(reader) == b"data"


@pytest.mark.parametrize("argv", [["cat"], ["false"]])
def test_an_error_stays_an_error(argv: list[str]) -> None:
    source = Failing(OSError("socket"), good=0) if argv == ["cat"] else io.BytesIO()
    with piped(argv, source, "copying") as reader:
        for _ in range(2):
            with pytest.raises((OSError, FormatError)):
                drain(reader)


def test_a_failing_filter_is_a_format_error_with_its_words() -> None:
    with (
        piped(["xz", "--decompress", "--stdout"], io.BytesIO(b"no xz at all"), "decompressing it") as reader,
        pytest.raises(FormatError, match=r"^decompressing it failed: xz --decompress --stdout ended with .*not recog"),
    ):
        drain(reader)


@pytest.mark.parametrize("error", [VerificationError("wrong digest"), OSError("socket"), ValueError("odd")])
def test_an_error_of_the_source_is_raised_as_it_is(error: Exception) -> None:
    with piped(["cat"], Failing(error), "copying") as reader, pytest.raises(type(error)) as caught:
        drain(reader)
    assert caught.value is error


def test_a_source_that_verifies_itself_at_its_end_is_heard_before_the_end_of_the_stream() -> None:
    source = VerifyingReader(io.BytesIO(BIG), Digest.of(b"something else"), None, "the archive")
    with piped(["cat"], source, "copying") as reader, pytest.raises(VerificationError, match="does not match"):
        drain(reader)


@pytest.mark.parametrize("size", [1001, 100_000, len(BIG)])
def test_input_that_a_successful_filter_leaves_is_noticed(size: int) -> None:
    text = "import os; os.write(1, os.read(0, 1000))"
    with (
        piped(script(text), io.BytesIO(BIG[:size]), "reading the beginning") as reader,
        pytest.raises(FormatError, match="ended before its input did"),
    ):
        drain(reader)


def test_a_filter_that_takes_exactly_its_input_is_content() -> None:
    with piped(["head", "-c", "1000"], io.BytesIO(BIG[:1000]), "reading") as reader:
        assert drain(reader) == BIG[:1000]


def test_a_filter_that_closes_its_output_early_does_not_hang() -> None:
    text = "import os; os.close(1); [None for _ in iter(lambda: os.read(0, 65536), b'')]"
    with (
        piped(script(text), io.BytesIO(BIG), "filtering") as reader,
        pytest.raises(FormatError, match="ended before its input did"),
    ):
        drain(reader)


@pytest.mark.parametrize("amount", [0, 1, 3_000_000])
def test_leaving_early_leaves_no_child_thread_or_descriptor(amount: int) -> None:
    before, threads, family = descriptors(), threading.active_count(), children()
    with piped(["cat"], io.BytesIO(BIG), "copying") as reader:
        assert len(reader.read(amount)) == amount
    assert (descriptors(), threading.active_count(), children()) == (before, threads, family)


def test_an_error_in_the_block_leaves_no_child_and_is_raised() -> None:
    before, family = descriptors(), children()
    with (
        pytest.raises(ZeroDivisionError),
        piped(script("import time; time.sleep(600)"), io.BytesIO(), "sleeping"),
    ):
        raise ZeroDivisionError
    assert (descriptors(), children()) == (before, family)


def test_a_filter_ends_when_its_parent_is_killed() -> None:
    code = (
        "import sys\n"
        "from shim.run import piped\n"
        "class Endless:\n"
        "    def read(self, amount): return bytes(amount)\n"
        "with piped(['cat'], Endless(), 'copying') as reader:\n"
        "    reader.read(10); print('up', flush=True); sys.stdin.read()\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([PYTHON, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout and parent.stdout.readline() == b"up\n"
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        watch = os.pidfd_open(child)
        parent.kill()
    try:
        assert select.select([watch], [], [], 60)[0], "the filter outlived its parent"
    finally:
        os.close(watch)
