"""Checksum lists: a line is understood exactly, or it stops the build."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presetbuild.sums import MAX_LIST, parse_sums
from shim.errors import FormatError, VerificationError

REAL = Path(__file__).parents[1] / "data" / "linuxcontainers" / "SHA256SUMS"
A, B = "a" * 64, "b" * 64


def test_real_list_of_linuxcontainers() -> None:
    sums = parse_sums(REAL.read_bytes(), "SHA256SUMS")
    assert sums.names == (
        "rootfs.tar.xz", "rootfs.squashfs", "disk.qcow2", "meta.tar.xz", "incus.tar.xz", "image.yaml", "build.log",
        "delta-20260828_05:24.vcdiff", "delta-20260828_05:24.qcow2.vcdiff",
    )  # fmt: skip
    assert sums.sha256("rootfs.tar.xz") == "c2eed8f2bf4fe70287ba9244161f30aefdb86328f5759d7efcdbf2b8a92288d6"
    assert sums.sha256("incus.tar.xz") == "8438717a2442f00bf4c6156efeae38d60173677b930f1b03b01b7294eece98c8"


@pytest.mark.parametrize(("text", "expected"), [
    (f"{A}  x\n", {"x": A}),
    (f"{A} *x\n", {"x": A}),
    (f"{A}  x", {"x": A}),
    (f"{A.upper()}  x\n", {"x": A}),
    (f"{'aA' * 32}  x\n", {"x": A}),
    (f"{A}  x\n{B} *y\n", {"x": A, "y": B}),
    (f"{A}  x\n{A.upper()} *x\n", {"x": A}),
    (f"{A}  a name with blanks\n", {"a name with blanks": A}),
    (f"{A} **x\n", {"*x": A}),
    (f"{A}  Änderung.tar\n", {"Änderung.tar": A}),
    (f"{A}  ..x\n{B}  .x\n", {"..x": A, ".x": B}),
    (f"{A}  delta-20260828_05:24.vcdiff\n", {"delta-20260828_05:24.vcdiff": A}),
])  # fmt: skip
def test_accepted_lists(text: str, expected: dict[str, str]) -> None:
    sums = parse_sums(text.encode(), "SHA256SUMS")
    assert {name: sums.sha256(name) for name in sums.names} == expected


@pytest.mark.parametrize(("line", "problem"), [
    ("", "a blank line"),
    ("  ", "a blank line"),
    ("\t", "a blank line"),
    ("\r", "a blank line"),
    (f"{B}  y\r", "ends with a carriage return"),
    ("# comment", "a comment"),
    (f"\\{B}  a\\nb", "an escaped file name"),
    (f"SHA256 (y) = {B}", "a line in BSD's format"),
    (f"SHA2-256(y)= {B}", "a line in BSD's format"),
    ("-----BEGIN PGP SIGNED MESSAGE-----", "OpenPGP armor"),
    ("<html>", "an HTML or XML document"),
    (f"{B[:-1]}  y", "a hash of 63 hexadecimal digits"),
    (f"{B}b  y", "a hash of 65 hexadecimal digits"),
    (f"{'b' * 128}  y", "a hash of 128 hexadecimal digits; SHA-256 has 64"),
    (f"{'b' * 32}  y", "a hash of 32 hexadecimal digits"),
    (f"{'g' * 64}  y", "expected 64 hexadecimal digits"),
    (f"{'٣' * 64}  y", "expected 64 hexadecimal digits"),
    (f"{B} y", "expected 64 hexadecimal digits"),
    (f"{B}\ty", "expected 64 hexadecimal digits"),
    (f"{B}", "expected 64 hexadecimal digits"),
    (f"{B}  ", "expected 64 hexadecimal digits"),
    (f" {B}  y", "expected 64 hexadecimal digits"),
    (f"y  {B}", "expected 64 hexadecimal digits"),
    ("\ufeff" + f"{B}  y", "expected 64 hexadecimal digits"),
    (f"{B}   y", "begins or ends with a blank"),
    (f"{B}  y ", "begins or ends with a blank"),
    (f"{B}  ./y", "not a plain file name"),
    (f"{B}  /etc/passwd", "not a plain file name"),
    (f"{B}  a/../y", "not a plain file name"),
    (f"{B}  ..", "not a plain file name"),
    (f"{B}  .", "not a plain file name"),
    (f"{B}  a\\y", "not a plain file name"),
    (f"{B}  y\0", "not printable"),
    (f"{B}  y\x1b[2J", "not printable"),
    (f"{B}  y\x85{A}  z", "not printable"),
    (f"{B}  y\u2028{A}  z", "not printable"),
    (f"{B}  y\x0b{A}  z", "not printable"),
    (f"{B}  y\rz", "not printable"),
    (f"{B}  \u202ezx.rat", "not printable"),
])  # fmt: skip
@pytest.mark.parametrize("last", [True, False])
def test_line_that_is_not_understood_is_never_skipped(line: str, problem: str, last: bool) -> None:
    text = f"{A}  x\n{line}\n" + ("" if last else f"{A}  z\n")
    with pytest.raises(FormatError) as caught:
        parse_sums(text.encode(), "SHA256SUMS")
    message = str(caught.value)
    assert message.startswith(f"SHA256SUMS, line 2: {problem}" if problem.startswith("a ") else "SHA256SUMS, line 2: ")
    assert problem in message
    assert message.isprintable()


def test_contradictory_lines_are_refused_with_both_hashes() -> None:
    with pytest.raises(FormatError, match=rf"line 3: contradicts .*: x has two different hashes, {A} and {B}"):
        parse_sums(f"{A}  x\n{A}  y\n{B} *x\n".encode(), "SHA256SUMS")


def test_missing_entry_is_named_with_what_is_covered() -> None:
    sums = parse_sums(f"{A}  rootfs.squashfs\n{B}  Rootfs.tar.xz\n".encode(), "SHA256SUMS")
    with pytest.raises(VerificationError) as caught:
        sums.sha256("rootfs.tar.xz")
    assert str(caught.value) == ("SHA256SUMS has no entry for rootfs.tar.xz; it covers: rootfs.squashfs, Rootfs.tar.xz")


@pytest.mark.parametrize(("data", "message"), [
    (b"", "SHA256SUMS is empty"),
    (b"\n", "line 1: a blank line"),
    (f"{A}  x\n".encode() + b"\n", "line 2: a blank line"),
    (f"{A}  x\n{B}  ".encode() + b"\xff\xfe\n", r"line 2: not UTF-8: b*  \\xff\\xfe"),
    (f"{A}  x\n".encode("utf-16"), "line 1: not UTF-8"),
    (b"a" * (MAX_LIST + 1), f"at most {MAX_LIST}"),
])  # fmt: skip
def test_file_that_is_no_list_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_sums(data, "SHA256SUMS")


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_list_or_in_a_sentence(data: bytes) -> None:
    try:
        sums = parse_sums(data, "SHA256SUMS")
    except FormatError as error:
        assert str(error).isprintable()
    else:
        assert len(data.removesuffix(b"\n").split(b"\n")) >= len(sums.names) > 0


@pytest.mark.parametrize("marker", ["--text", "--binary"])
def test_what_sha256sum_writes_is_read(tmp_path: Path, marker: str) -> None:
    for name in ("rootfs.tar.xz", "a name", "ß"):
        (tmp_path / name).write_text(name)
    command = ["sha256sum", marker, "rootfs.tar.xz", "a name", "ß"]
    written = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    sums = parse_sums(written, "SHA256SUMS")
    assert {name: sums.sha256(name) for name in sums.names} == {
        name: hashlib.sha256(name.encode()).hexdigest() for name in ("rootfs.tar.xz", "a name", "ß")
    }
