"""The console of a machine that runs here, without a machine; with one it is in tests/system/test_boot.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from shim.terminal import STOPPING, Relay, Wish, stop_wishes


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    ("numbers", "wish"),
    [
        ([], Wish(stop=False, at_once=False)),
        *(([number], Wish(stop=True, at_once=False)) for number in STOPPING),
        ([signal.SIGINT, signal.SIGINT], Wish(stop=True, at_once=True)),
        ([signal.SIGTERM, signal.SIGINT], Wish(stop=True, at_once=True)),
        ([signal.SIGINT, signal.SIGTERM], Wish(stop=True, at_once=False)),
        ([signal.SIGHUP, signal.SIGHUP], Wish(stop=True, at_once=False)),
    ],
)
def test_the_first_signal_asks_and_ctrl_c_again_insists(numbers: list[signal.Signals], wish: Wish) -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    with stop_wishes() as found:
        for number in numbers:
            signal.raise_signal(number)
    assert found == wish
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_a_console_that_was_hung_up_has_nothing_more_to_show() -> None:
    # It is readable all the time, and every read fails.
    console, terminal = os.openpty()
    os.close(terminal)
    try:
        assert not Relay(console, lambda seconds: b"").step(0)
    finally:
        os.close(console)


def test_what_a_guest_printed_is_shown_to_its_last_byte(
    pipe: tuple[int, int], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = bytes(range(256)) * 100
    os.write(pipe[1], text)
    relay = Relay(pipe[0], lambda seconds: os.read(pipe[0], 1 << 16))
    while relay.step(0):
        pass
    assert capfdbinary.readouterr().out == text
    assert not relay.hung_up
