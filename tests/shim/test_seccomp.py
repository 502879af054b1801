"""What boot's seccomp filter refuses and allows, judged by an interpreter of its program and by the kernel itself."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

import pytest

from shim import linux
from shim.linux import MountFlag
from shim.seccomp import shutdown_filter

ALLOW, DENY = 0x7FFF0000, 0x00050000 | errno.EPERM
X86_64, I386, ARM64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
X32 = 0x40000000
REMOUNT, BIND, RDONLY = 0x20, 0x1000, 0x1

# The numbers of mount, fsconfig and umount2, then of the calls that are refused always, in each table of the kernel.
CALLS = {
    "x86-64": (X86_64, 165, 431, 166, {"swapon": 167, "swapoff": 168, "kexec_load": 246, "kexec_file_load": 320}),
    "x32": (X86_64, X32 | 165, X32 | 431, X32 | 166, {"swapoff": X32 | 168, "kexec_load": X32 | 528}),
    "i386": (I386, 21, 431, 52, {"swapon": 87, "swapoff": 115, "kexec_load": 283}),
    "arm64": (ARM64, 40, 431, 39, {"swapon": 224, "swapoff": 225, "kexec_load": 104, "kexec_file_load": 294}),
    "arm": (ARM, 21, 431, 52, {"swapon": 87, "swapoff": 115, "kexec_load": 347, "kexec_file_load": 401}),
}
tables = pytest.mark.parametrize("table", CALLS)


def judge(architecture: int, number: int, *arguments: int) -> int:
    """Return what the filter answers to a call, as the kernel's BPF machine would."""
    data = struct.pack("iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("HBBI", shutdown_filter()))
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, value = program[position]
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                position += if_true if accumulator == value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"an instruction that this machine does not know: {code:#x}")


@tables
@pytest.mark.parametrize("flags", [REMOUNT, REMOUNT | RDONLY, REMOUNT | 0xC0ED0000, REMOUNT | 1 << 40])
def test_remounting_a_superblock_is_refused(table: str, flags: int) -> None:
    architecture, mount, *_ = CALLS[table]
    assert judge(architecture, mount, 0, 0, 0, flags) == DENY


@tables
@pytest.mark.parametrize("flags", [0, RDONLY, BIND, REMOUNT | BIND, REMOUNT | BIND | RDONLY, 0xC0ED0000])
def test_other_mounts_are_allowed(table: str, flags: int) -> None:
    architecture, mount, *_ = CALLS[table]
    assert judge(architecture, mount, 0, 0, 0, flags) == ALLOW


@tables
@pytest.mark.parametrize(("command", "answer"), [(7, DENY), (7 | 1 << 32, DENY), (6, ALLOW), (0, ALLOW), (8, ALLOW)])
def test_of_fsconfig_only_the_reconfiguration_is_refused(table: str, command: int, answer: int) -> None:
    architecture, _, fsconfig, *_ = CALLS[table]
    assert judge(architecture, fsconfig, 3, command) == answer


@pytest.mark.parametrize(("table", "call"), [(table, call) for table, row in CALLS.items() for call in row[4]])
def test_swap_and_kexec_are_refused(table: str, call: str) -> None:
    assert judge(CALLS[table][0], CALLS[table][4][call]) == DENY


@tables
def test_everything_else_is_allowed(table: str) -> None:
    architecture, mount, fsconfig, _, refused = CALLS[table]
    judged = {mount, fsconfig, *refused.values()}
    if architecture == X86_64:  # one block judges both of its tables
        judged |= {X32 | 167, X32 | 246, X32 | 320, 528}
    numbers = {mount & X32 | number for number in range(600)}
    assert {number for number in numbers if judge(architecture, number) == DENY} <= judged
    assert {judge(architecture, number) for number in numbers - judged} == {ALLOW}


def test_an_unknown_architecture_can_call_nothing() -> None:
    assert judge(0xC0000016, 0) == DENY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can set a filter and mount")
def test_the_kernel_takes_the_filter_and_enforces_it() -> None:
    # In a child: nothing takes a filter off again.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(_outcomes()).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        outcomes = pipe.read()
    os.waitpid(child, 0)
    assert outcomes == repr({"remount": "EPERM", "bind remount": "", "swapoff": "EPERM", "new privileges": "0"})


def _outcomes() -> dict[str, str]:
    linux.unshare(linux.Namespace.MOUNT)
    linux.mount(None, "none", "/", MountFlag.REC | MountFlag.PRIVATE)
    linux.mount("tmpfs", "tmpfs", "/mnt")
    linux.set_seccomp_filter(shutdown_filter())
    outcomes = {}
    for name, flags in {"remount": MountFlag.REMOUNT, "bind remount": MountFlag.REMOUNT | MountFlag.BIND}.items():
        try:
            linux.mount(None, "none", "/mnt", flags | MountFlag.RDONLY)
            outcomes[name] = ""
        except linux.SystemCallFailed as error:
            outcomes[name] = errno.errorcode[error.errno]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.swapoff(b"/nowhere")
    outcomes["swapoff"] = errno.errorcode[ctypes.get_errno()]
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    outcomes["new privileges"] = next(line.split()[1] for line in status if line.startswith("NoNewPrivs"))
    return outcomes
