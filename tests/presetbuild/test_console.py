"""What a person sees on standard error: plain lines in a pipe, a display that cleans up after itself on a terminal."""

from __future__ import annotations

import io
import os
import pty
import time

import pytest

from presetbuild.console import Console

MIB = 1 << 20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_transfer_that_is_quick_stays_silent(clock: list[float]) -> None:
    stream = io.StringIO()
    with Console(stream) as lines:
        lines.progress("rootfs.tar.xz", MIB, 2 * MIB)
        clock[0] += 1
        lines.progress("rootfs.tar.xz", 2 * MIB, 2 * MIB)
    assert stream.getvalue() == ""


def test_a_long_transfer_says_how_far_it_is_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    with Console(stream) as lines:
        for step in range(12):
            lines.progress("rootfs.tar.xz", step * MIB, 12 * MIB)
            clock[0] += 1
        lines.progress("list", MIB, None)
        clock[0] += 6
        lines.progress("list", 3 * MIB, None)
    assert stream.getvalue().splitlines() == [
        "rootfs.tar.xz: 5.0 of 12.0 MiB",
        "rootfs.tar.xz: 10.0 of 12.0 MiB",
        "list: 3.0 MiB",
    ]


def test_a_terminal_gets_a_display_that_is_gone_in_the_end() -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal, Console(terminal) as display:
        display.progress("rootfs.tar.xz", MIB, 4 * MIB)
        display.tell("[red]a sentence[/red] is text and no markup")
        display.progress("rootfs.tar.xz", 4 * MIB, 4 * MIB)
    shown = b"".join(iter(lambda: _read(leader), b"")).decode()
    os.close(leader)
    assert "[red]a sentence[/red] is text and no markup" in shown
    assert "\x1b[?25h" in shown  # the cursor is shown again


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: nobody has the other end open any more
        return b""
