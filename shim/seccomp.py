"""The filter that keeps a guest's shutdown from its host, assembled by hand for seccomp's BPF machine.

On the way down an init remounts ``/`` read-only, switches swap off and may load another kernel. In a pod each of these
reaches the node: a bind mount's *superblock* is the node's own file system. The calls answer EPERM here, and the init
goes on to its end. Remounts of a bind mount (MS_REMOUNT with MS_BIND) change that mount only, and stay allowed.

Both machine types run a second table of system calls for 32-bit programs, and x86-64 a third (x32), so the filter looks
at the architecture of each call. Source: Linux, Documentation/userspace-api/seccomp_filter.rst, uapi/linux/seccomp.h;
the numbers from the kernel's system call tables.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass

# struct seccomp_data: nr, arch, instruction pointer, six 64-bit arguments; both machine types are little-endian.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_RET|BPF_K
_JUMP_IF_EQUAL = 0x15  # BPF_JMP|BPF_JEQ|BPF_K
_ALLOW = 0x7FFF0000
_DENY = 0x00050000 | errno.EPERM  # SECCOMP_RET_ERRNO

_X32_BIT = 0x40000000
_MS_REMOUNT, _MS_BIND = 0x20, 0x1000
_FSCONFIG, _FSCONFIG_CMD_RECONFIGURE = 431, 7  # the same number everywhere


@dataclass(frozen=True, slots=True)
class _Table:
    """One architecture's numbers: of mount, and of the calls that are refused whatever their arguments."""

    audit: int  # AUDIT_ARCH_*
    mount: int
    refused: tuple[int, ...]  # swapon, swapoff, kexec_load, kexec_file_load


_TABLES = (
    _Table(0xC000003E, 165, (167, 168, 246, 320, 528)),  # x86-64; 528 is x32's kexec_load
    _Table(0x40000003, 21, (87, 115, 283)),  # i386 has no kexec_file_load
    _Table(0xC00000B7, 40, (224, 225, 104, 294)),  # arm64
    _Table(0x40000028, 21, (87, 115, 347, 401)),  # 32-bit ARM
)


def shutdown_filter() -> bytes:
    """Return the filter as a BPF program, the same for every machine; an architecture it does not know gets EPERM."""
    program = _instruction(_LOAD, _ARCHITECTURE)
    for table in _TABLES:
        block = _block(table)
        program += _instruction(_JUMP_IF_EQUAL, table.audit, 0, len(block) // 8) + block
    return program + _instruction(_RETURN, _DENY)


def _block(table: _Table) -> bytes:
    """Judge one architecture's call; every way through it ends in a return."""
    flags_are = _argument(3, _MS_REMOUNT | _MS_BIND, _MS_REMOUNT)
    command_is = _argument(1, 0xFFFFFFFF, _FSCONFIG_CMD_RECONFIGURE)
    block = _instruction(_LOAD, _NUMBER)
    if table.audit == _TABLES[0].audit:
        block += _instruction(_AND, ~_X32_BIT & 0xFFFFFFFF)
    for number in table.refused:
        block += _instruction(_JUMP_IF_EQUAL, number, 0, 1) + _instruction(_RETURN, _DENY)
    for number, judge in ((table.mount, flags_are), (_FSCONFIG, command_is)):
        block += _instruction(_JUMP_IF_EQUAL, number, 0, len(judge) // 8) + judge
    return block + _instruction(_RETURN, _ALLOW)


def _argument(position: int, mask: int, value: int) -> bytes:
    """Refuse the call if its argument has this value under the mask, else allow it. The flags are in the low half."""
    steps: Sequence[bytes] = (
        _instruction(_LOAD, _ARGUMENTS + 8 * position),
        _instruction(_AND, mask),
        _instruction(_JUMP_IF_EQUAL, value, 0, 1),
        _instruction(_RETURN, _DENY),
        _instruction(_RETURN, _ALLOW),
    )
    return b"".join(steps)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
