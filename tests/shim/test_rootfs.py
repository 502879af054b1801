"""What is accepted as the archive of a root filesystem, what it says about itself, and how anything else is named."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shim.image.rootfs
from shim.errors import FormatError
from shim.image.rootfs import MAX_OS_RELEASE, Inspection, Inspector, parse_os_release
from tests.shim.tars import END, GNU, directory, file, header, link, long_name, pax, rootfs

RELEASE = b"ID=debian\n"


def inspect(archive: bytes, step: int = 1 << 20) -> Inspection:
    inspector = Inspector("rootfs.tar.xz")
    for start in range(0, len(archive), step):
        inspector.feed(archive[start : start + step])
    return inspector.finish()


def elf(wordsize: int, encoding: int, machine: int) -> bytes:
    """Return the beginning of an ELF file."""
    order = "big" if encoding == 2 else "little"
    head = b"\x7fELF" + bytes([wordsize, encoding, 1]).ljust(12, b"\0")
    return head + (3).to_bytes(2, order) + machine.to_bytes(2, order) + bytes(100)  # type: ignore[arg-type]


def executable(name: bytes, content: bytes = elf(2, 1, 62), mode: int = 0o755) -> bytes:
    return file(name, content, mode=mode)


def test_a_root_filesystem_is_described() -> None:
    archive = rootfs(executable(b"./usr/bin/true"), executable(b"./usr/bin/cloud-init", b"#!/usr/bin/python3\n"))
    for step in (1, 513, 1 << 20):
        assert inspect(archive, step) == Inspection(
            size=len(archive),
            members=7,
            os_release={"ID": "debian", "VERSION_CODENAME": "trixie"},
            machines={"amd64": b"usr/bin/true"},
            cloud_init=True,
        )


def test_nothing_but_the_least_is_needed() -> None:
    found = inspect(rootfs())
    assert (found.machines, found.cloud_init) == ({}, False)


@pytest.mark.parametrize(
    "members",
    [
        [directory(b"etc"), directory(b"usr"), directory(b"sbin"), file(b"etc/os-release", RELEASE)],
        [directory(b"etc"), directory(b"usr"), link(b"sbin", b"usr/sbin"), file(b"usr/lib/os-release", RELEASE)],
        [file(b"/etc/os-release", RELEASE), executable(b"/usr/sbin/init")],  # directories that are never listed
        [link(b"usr/sbin", b"bin"), file(b"usr/lib/os-release", RELEASE), directory(b"./etc")],
        [directory(b"./etc"), directory(b"./usr/sbin"), file(b"./etc/os-release", RELEASE), directory(b".")],
    ],
    ids=["split", "merged", "implied", "sbin merged too", "parents last"],
)
def test_each_usual_form_of_a_root_is_accepted(members: list[bytes]) -> None:
    assert inspect(b"".join((*members, END))).os_release == {"ID": "debian"}


REFUSED = {
    "a whiteout": ([file(b"./usr/.wh.bin")], r"begins with \.wh\."),
    "an opaque marker": ([file(b".wh..wh..opq")], r"begins with \.wh\."),
    "a whiteout directory": ([file(b"usr/.wh.x/file")], r"begins with \.wh\."),
    "a path that stands twice": ([file(b"etc/os-release")], "stands twice"),
    "a path in two spellings": ([file(b"/etc//./os-release")], "stands twice"),
    "a path by a long name": ([long_name(b"./etc/os-release") + file(b"other")], "stands twice"),
    "a path by PAX": ([pax({b"path": b"etc/os-release"}) + file(b"other")], "stands twice"),
    "a directory twice": ([directory(b"usr/")], "stands twice"),
    "the root twice": ([directory(b"/")], "stands twice"),
    "a directory over a file": ([directory(b"etc/os-release")], "stands twice"),
    "a file over a directory": ([file(b"usr")], "stands twice"),
    "a file over a symlink": ([link(b"l", b"x"), file(b"l")], "stands twice"),
    "a member below a file": ([file(b"etc/os-release/x")], "below 'etc/os-release', which is no directory"),
    "a member far below a file": ([file(b"etc/os-release/x/y/z")], "below 'etc/os-release', which is no directory"),
    "a member below a symlink": ([link(b"bin", b"usr/bin"), file(b"bin/sh")], "below 'bin', which is no directory"),
    "a member below a device": ([header(b"d", type=b"3"), file(b"d/x")], "below 'd', which is no directory"),
    "a symlink above a member": ([file(b"bin/sh"), link(b"bin", b"usr/bin")], "members before it are below it"),
    "a file above members": ([file(b"a/b/c"), file(b"a")], "members before it are below it"),
    "a hard link to nothing": ([link(b"l", b"gone", b"1")], "hard link to 'gone', and no such file comes before"),
    "a hard link to itself": ([link(b"l", b"l", b"1")], "no such file comes before"),
    "a hard link before its target": ([link(b"l", b"f", b"1"), file(b"f")], "no such file comes before"),
    "a hard link to a directory": ([link(b"l", b"./usr", b"1")], "no such file comes before"),
    "a hard link to an implied directory": ([file(b"a/b"), link(b"l", b"a", b"1")], "no such file comes before"),
    "a hard link to the root": ([link(b"l", b"/", b"1")], "hard link to a directory"),
    "a multi-volume member": ([header(b"m", type=b"M", magic=GNU)], "one volume of several"),
}


@pytest.mark.parametrize(("members", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_one_meaning_is_refused(members: list[bytes], problem: str) -> None:
    with pytest.raises(FormatError, match=rf"^rootfs\.tar\.xz, member .*{problem}"):
        inspect(rootfs(*members))


def test_a_refusal_names_member_and_offset() -> None:
    with pytest.raises(FormatError) as caught:
        inspect(rootfs(file(b"./usr/.wh.bin\x1b")))
    assert str(caught.value) == (
        r"rootfs.tar.xz, member './usr/.wh.bin\x1b', byte 3072: "
        "a name that begins with .wh. marks a deletion in an OCI layer"
    )


def test_names_that_only_look_like_whiteouts_are_no_whiteouts() -> None:
    assert inspect(rootfs(file(b"etc/a.wh.b"), file(b"etc/.what"))).members == 7


OTHER = {
    "nothing": (END, "it is empty"),
    "only the root": (directory(b"./") + END, "it is empty"),
    "one directory": (
        directory(b"debian") + file(b"debian/etc/os-release", RELEASE) + directory(b"debian/usr/sbin") + END,
        r"everything is below debian/ \(pack what is inside of that directory, with tar -C debian \.\)$",
    ),
    "LXD": (file(b"metadata.yaml") + directory(b"rootfs/etc") + END, r"a unified LXD or Incus image"),
    "an OCI archive": (file(b"oci-layout") + file(b"index.json") + directory(b"blobs") + END, "OCI or Docker image"),
    "docker save": (file(b"manifest.json") + file(b"0123/layer.tar") + END, "OCI or Docker image"),
    "something else": (
        b"".join(file(b"f\x1b%d" % number) for number in range(10)) + END,
        r"lacks etc, usr, sbin \(or usr/sbin\), etc/os-release .*; at the top it holds f\\x1b0.*, f\\x1b7 and 2 more",
    ),
    "no os-release": (
        directory(b"etc") + directory(b"usr/sbin") + END,
        r"it lacks etc/os-release \(or usr/lib/os-release\); at the top it holds etc, usr$",
    ),
    "etc is a link": (
        link(b"etc", b"usr/etc") + directory(b"usr/sbin") + file(b"usr/lib/os-release") + END, "it lacks etc; at the"
    ),
    "sbin is a file": (
        file(b"sbin") + directory(b"usr") + file(b"etc/os-release") + END, r"it lacks sbin \(or usr/sbin\); at the"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("archive", "problem"), OTHER.values(), ids=OTHER)
def test_what_is_no_root_filesystem_is_told_by_its_looks(archive: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=rf"^rootfs\.tar\.xz is no root filesystem: .*{problem}"):
        inspect(archive)


def test_an_archive_that_is_cut_off_is_refused() -> None:
    with pytest.raises(FormatError, match="cut off"):
        inspect(rootfs()[:-512])


BASE = (directory(b"etc"), directory(b"usr/sbin"))
LINKED: dict[str, tuple[bytes, ...]] = {
    "relative": (link(b"etc/os-release", b"../usr/lib/os-release"), file(b"usr/lib/os-release", RELEASE)),
    "absolute": (link(b"etc/os-release", b"/usr/lib/os-release"), file(b"usr/lib/os-release", RELEASE)),
    "after its target": (file(b"usr/lib/os-release", RELEASE), link(b"etc/os-release", b"../usr/lib/./os-release")),
    "above the root": (link(b"etc/os-release", b"../../../usr/lib/os-release"), file(b"usr/lib/os-release", RELEASE)),
    "through a directory link": (
        link(b"lib", b"usr/lib"), link(b"etc/os-release", b"../lib/os-release"), file(b"usr/lib/os-release", RELEASE)
    ),
    "through two links": (
        link(b"etc/os-release", b"../usr/lib/os-release"), link(b"usr/lib/os-release", b"d/os-release-container"),
        file(b"usr/lib/d/os-release-container", RELEASE),
    ),
    "a hard link": (file(b"usr/lib/os-release", RELEASE), link(b"etc/os-release", b"usr/lib/os-release", b"1")),
    "a hard link to a link": (
        file(b"usr/lib/os-release", RELEASE), link(b"l", b"/usr/lib/os-release"), link(b"etc/os-release", b"l", b"1")
    ),
    "etc before usr": (file(b"usr/lib/os-release", b"ID=other\n"), file(b"etc/os-release", RELEASE)),
    "behind many of the name": (
        *(file(b"usr/share/os-release.%d" % number) for number in range(100)), file(b"etc/os-release", RELEASE)
    ),
}  # fmt: skip


@pytest.mark.parametrize("members", LINKED.values(), ids=LINKED)
def test_os_release_is_found_inside_of_the_archive(members: tuple[bytes, ...]) -> None:
    assert inspect(b"".join((*BASE, *members, END))).os_release == {"ID": "debian"}


UNREADABLE = {
    "dangling": ((link(b"etc/os-release", b"/gone"),), "etc/os-release leads to 'gone', which is no regular file"),
    "a loop": ((link(b"etc/os-release", b"os-release"),), "no regular file"),
    "a longer loop": ((link(b"etc/os-release", b"/l/x"), link(b"l", b"etc/os-release")), "no regular file"),
    "a directory": ((directory(b"etc/os-release"),), "no regular file"),
    "a fifo": ((header(b"etc/os-release", type=b"6"),), "no regular file"),
    "a sparse file": (
        (pax([(b"GNU.sparse.size", b"99"), (b"GNU.sparse.numblocks", b"1"), (b"GNU.sparse.map", b"0,10")])
         + file(b"etc/os-release", RELEASE),), "no regular file",
    ),
    "too long": ((file(b"etc/os-release", bytes(MAX_OS_RELEASE + 1)),), "etc/os-release is longer than 65536 bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("members", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_os_release_that_cannot_be_read_is_refused(members: tuple[bytes, ...], problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        inspect(b"".join((*BASE, *members, END)))


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("V=plain", "plain"),
        ("V=https://example.org/?a=b#c[d]*", "https://example.org/?a=b#c[d]*"),
        ("V=https://example.org/a-b_c.d:1,2+3%4@5", "https://example.org/a-b_c.d:1,2+3%4@5"),
        ("V=1.0~rc1", "1.0~rc1"),
        ("V=", ""),
        ('V=""', ""),
        ('V="two words"', "two words"),
        ("V='two words'", "two words"),
        (r'V="a \"b\" \$c \\ \` \d"', r'a "b" $c \ ` \d'),
        (r"V='a \b'", r"a \b"),
        ('V="# no comment; x"', "# no comment; x"),
        ('  V="x"\t', "x"),
        ('V="Ünïcode"', "Ünïcode"),
        ("# V=x", None),
        ("  #V='x", None),
        ("#", None),
        (" \t", None),
    ],
)
def test_os_release_is_read_by_its_own_quoting_rules(line: str, value: str | None, tmp_path: Path) -> None:
    """And as a shell reads it."""
    content = f"A=1\n{line}\n\nB=2"
    expected = {"A": "1", "B": "2"} | ({} if value is None else {"V": value})
    assert parse_os_release(content.encode()) == expected
    (tmp_path / "os-release").write_text(content)
    shell = ["sh", "-c", '. "$1"; printf "%s|" "$A" "${V-unset}" "$B"', "sh", str(tmp_path / "os-release")]
    assert subprocess.run(shell, check=True, capture_output=True, env={}).stdout.decode() == (
        f"1|{'unset' if value is None else value}|2|"
    )


@pytest.mark.parametrize(
    "lines",
    [
        "V = x", "V=two words", "V=x; rm -rf /", "V=x;", "V=$(id)", "V=`id`", 'V="$HOME"', 'V="`id`"', "V='a'b",
        'V="evil"x', 'V="a""b"', "V=ev\\il", 'V="unfinished', 'V="a\\"', "V='", "export V=x", "V=evil # comment",
        "V=a W=b", "V=x&",
        "V=x|y", "V=x>y", "V=(a b)", "V+=x", "V[0]=x", "1V=x", "=x", "V", "V=~", "V=a:~root", "; V=x",
        "\ufeffV=x",
        'X="\nV=evil\n"', "X='\nV=evil\n'", "V=pe\\\nt", 'V="pe\\\nt"', "# a comment \\\nV=x", "V=x\r", "# x\rV=evil",
        'V="a\rb"', "V=a\0b", '"', "\f", "V=\x1b[2J", "source /etc/other",
    ],
)  # fmt: skip
def test_what_readers_of_os_release_would_take_differently_is_refused(lines: str) -> None:
    with pytest.raises(FormatError, match=r"^it, line [23]: expected NAME=value as os-release\(5\) has it"):
        parse_os_release(f"A=1\n{lines}\nB=2\n".encode(), "it")


def test_a_line_of_os_release_that_is_refused_is_shown_with_where_it_is() -> None:
    archive = b"".join((*BASE, file(b"./etc/os-release", b"ID=debian\nexport ID=\x1bevil\n"), END))
    with pytest.raises(FormatError) as caught:
        inspect(archive)
    assert str(caught.value) == (
        r"rootfs.tar.xz: etc/os-release, line 2: expected NAME=value as os-release(5) has it, a comment or nothing; "
        r"found 'export ID=\x1bevil'"
    )


HONEST = {  # as these distributions ship it
    "debian": (
        'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nNAME="Debian GNU/Linux"\nVERSION_ID="13"\nVERSION="13 (trixie)"\n'
        'VERSION_CODENAME=trixie\nDEBIAN_VERSION_FULL=13.1\nID=debian\nHOME_URL="https://www.debian.org/"\n'
        'SUPPORT_URL="https://www.debian.org/support"\nBUG_REPORT_URL="https://bugs.debian.org/"\n'
    ),
    "ubuntu": (
        'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nVERSION="24.04.3 LTS (Noble Numbat)"\n'
        'VERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\nHOME_URL="https://www.ubuntu.com/"\n'
        'PRIVACY_POLICY_URL="https://www.ubuntu.com/legal/terms-and-policies/privacy-policy"\n'
        "UBUNTU_CODENAME=noble\nLOGO=ubuntu-logo\n"
    ),
    "alpine": (
        'NAME="Alpine Linux"\nID=alpine\nVERSION_ID=3.22.1\nPRETTY_NAME="Alpine Linux v3.22"\n'
        'HOME_URL="https://alpinelinux.org/"\n'
        'BUG_REPORT_URL="https://gitlab.alpinelinux.org/alpine/aports/-/issues"\n'
    ),
    "void": (
        'NAME="Void"\nID="void"\nPRETTY_NAME="Void Linux"\nHOME_URL="https://voidlinux.org/"\n'
        'DOCUMENTATION_URL="https://docs.voidlinux.org/"\nLOGO="void-logo"\nANSI_COLOR="0;38;2;71;128;97"\n\n'
        'DISTRIB_ID="void"\n'
    ),
    "fedora": (
        'NAME="Fedora Linux"\nVERSION="42 (Container Image)"\nRELEASE_TYPE=stable\nID=fedora\nVERSION_ID=42\n'
        'VERSION_CODENAME=""\nPLATFORM_ID="platform:f42"\nPRETTY_NAME="Fedora Linux 42 (Container Image)"\n'
        'ANSI_COLOR="0;38;2;60;110;180"\nLOGO=fedora-logo-icon\nCPE_NAME="cpe:/o:fedoraproject:fedora:42"\n'
        'DEFAULT_HOSTNAME="fedora"\nREDHAT_BUGZILLA_PRODUCT="Fedora"\nREDHAT_BUGZILLA_PRODUCT_VERSION=42\n'
        'SUPPORT_END=2026-05-13\nVARIANT="Container Image"\nVARIANT_ID=container\n'
    ),
    "arch": (
        'NAME="Arch Linux"\nPRETTY_NAME="Arch Linux"\nID=arch\nBUILD_ID=rolling\nANSI_COLOR="38;2;23;147;209"\n'
        'HOME_URL="https://archlinux.org/"\nBUG_REPORT_URL="https://gitlab.archlinux.org/groups/archlinux/-/issues"\n'
        "LOGO=archlinux-logo\nIMAGE_ID=archlinux\nIMAGE_VERSION=20250824.0.406130\n"
    ),
    "opensuse-leap": (
        'NAME="openSUSE Leap"\nVERSION="15.6"\nID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"\n'
        'PRETTY_NAME="openSUSE Leap 15.6"\nANSI_COLOR="0;32"\nCPE_NAME="cpe:/o:opensuse:leap:15.6"\n'
        '# a comment\nLOGO="distributor-logo-Leap"\n'
    ),
}


@pytest.mark.parametrize(("name", "content"), HONEST.items(), ids=HONEST)
def test_the_os_release_of_a_distribution_is_read_whole(name: str, content: str) -> None:
    found = parse_os_release(content.encode())
    assert found["ID"] == name
    assert len(found) == content.count("=")


def test_the_last_assignment_of_os_release_wins() -> None:
    assert parse_os_release(b'ID=one\nID="two"\n') == {"ID": "two"}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"])))
def test_what_a_shell_would_quote_is_read_back(text: str) -> None:
    quoted = "".join("\\" + char if char in '"$`\\' else char for char in text)
    assert parse_os_release(f'V="{quoted}"'.encode()) == {"V": text}


@given(st.binary())
def test_no_os_release_is_too_odd(content: bytes) -> None:
    with contextlib.suppress(FormatError):
        parse_os_release(content)


@pytest.mark.parametrize(
    ("header_fields", "architecture"),
    [
        ((2, 1, 62), "amd64"), ((2, 1, 183), "arm64"), ((1, 1, 3), "386"), ((1, 1, 40), "arm"),
        ((2, 1, 243), "riscv64"), ((2, 1, 21), "ppc64le"), ((2, 2, 22), "s390x"),
        ((2, 2, 21), "ELF machine 21"), ((1, 1, 62), "ELF machine 62"), ((2, 2, 183), "ELF machine 183"),
        ((2, 1, 258), "ELF machine 258"), ((0, 0, 8), "ELF machine 8"),
    ],
)  # fmt: skip
def test_an_elf_header_tells_the_machine(header_fields: tuple[int, int, int], architecture: str) -> None:
    assert inspect(rootfs(executable(b"usr/bin/x", elf(*header_fields)))).machines == {architecture: b"usr/bin/x"}


def test_machines_are_those_of_executables_in_the_four_directories() -> None:
    arm, other = elf(2, 1, 183), elf(1, 1, 8)
    found = inspect(
        rootfs(
            executable(b"bin/a", elf(2, 1, 62)),
            executable(b"sbin/b", elf(1, 1, 3)),
            executable(b"usr/sbin/c", arm, mode=0o4711),
            executable(b"usr/bin/d", arm),
            executable(b"usr/bin/not-executable", other, mode=0o644),
            executable(b"usr/bin/below/x", other),
            executable(b"usr/lib/x", other),
            executable(b"usr/bin/short", other[:19]),
            executable(b"usr/bin/empty", b""),
            executable(b"usr/bin/script", b"#!/bin/sh\n" + bytes(20)),
        )
    )
    assert found.machines == {"amd64": b"bin/a", "386": b"sbin/b", "arm64": b"usr/sbin/c"}


@pytest.mark.parametrize(
    ("members", "there"),
    [
        ([executable(b"usr/bin/cloud-init", b"#!")], True),
        ([executable(b"bin/cloud-init", b"#!")], True),
        ([executable(b"usr/local/bin/cloud-init", b"#!")], True),
        ([executable(b"usr/lib/c", b"#!"), link(b"usr/bin/cloud-init", b"../lib/c")], True),
        ([executable(b"usr/lib/c", b"#!"), link(b"usr/bin/cloud-init", b"usr/lib/c", b"1")], True),
        ([file(b"usr/bin/cloud-init", b"#!")], False),
        ([directory(b"usr/bin/cloud-init")], False),
        ([link(b"usr/bin/cloud-init", b"../lib/gone")], False),
        ([link(b"usr/bin/cloud-init", b"/usr/lib")], False),
        ([executable(b"usr/bin/cloud-init-per", b"#!"), executable(b"opt/cloud-init", b"#!")], False),
    ],
)
def test_cloud_init_counts_where_it_can_be_executed(members: list[bytes], there: bool) -> None:
    assert inspect(rootfs(*members)).cloud_init is there


def test_names_have_a_ceiling_also_those_of_directories_that_are_never_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim.image.rootfs, "_MAX_INDEX", 10_000)
    assert inspect(rootfs(file(b"usr/x"))).members == 6
    with pytest.raises(FormatError, match="more than 10000 bytes"):
        inspect(rootfs(file(b"d/" * 49 + b"f"), pax({b"path": b"x/" * 200 + b"f"}) + file(b"f")))


MEASURE = """
import sys
from shim.errors import FormatError
from shim.image.rootfs import Inspector
from tests.shim.tars import header
def peak():  # not ru_maxrss, which begins with what the parent had when it forked
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
kind, length = sys.argv[1].encode(), int(sys.argv[2])
before, inspector = peak(), Inspector("it")
try:
    for number in range(0, 300_000, 1000):
        texts = [(b"%d" % (number + one)).rjust(length, b"x") for one in range(1000)]
        inspector.feed(b"".join(header(text, type=kind, linkname=text if kind == b"2" else b"") for text in texts))
except FormatError as error:
    print(peak() - before, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "length"), [(b"0", 8), (b"0", 60), (b"2", 8), (b"2", 90)])
def test_the_names_of_very_many_members_stay_in_memory_that_is_bounded(kind: bytes, length: int) -> None:
    command = [sys.executable, "-c", MEASURE, kind.decode(), str(length)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    memory, _, message = done.stdout.partition(" ")
    assert "take more than 20971520 bytes of memory" in message
    assert int(memory) < 28_000  # KiB, with what one feed takes


def test_a_tree_packed_by_gnu_tar_is_described(tmp_path: Path) -> None:
    for path in ("etc", "usr/bin", "usr/sbin", "usr/lib", "dev", "tmp"):
        (tmp_path / path).mkdir(parents=True)
    for name in ("bin", "sbin", "lib"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    (tmp_path / "etc/os-release").symlink_to("../usr/lib/os-release")
    (tmp_path / "usr/lib/os-release").write_text('ID=alpine\nVERSION_ID=3.24.1\nPRETTY_NAME="Alpine Linux v3.24"\n')
    (tmp_path / "usr/bin/busybox").write_bytes(elf(2, 1, 183))
    (tmp_path / "usr/bin/busybox").chmod(0o755)
    os.link(tmp_path / "usr/bin/busybox", tmp_path / "usr/sbin/init")
    for form in ("gnu", "pax", "ustar"):
        command = ["tar", "--create", f"--format={form}", f"--directory={tmp_path}", "."]
        archive = subprocess.run(command, check=True, capture_output=True).stdout
        found = inspect(archive)
        assert found.size == len(archive)
        assert found.members == 15
        assert found.os_release == {"ID": "alpine", "VERSION_ID": "3.24.1", "PRETTY_NAME": "Alpine Linux v3.24"}
        assert set(found.machines) == {"arm64"}
        assert not found.cloud_init
