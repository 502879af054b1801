"""Hands a machine's first-boot material to cloud-init inside the guest, as a NoCloud seed.

The material arrives as files under fixed names in one directory. Raw ``user-data`` goes to cloud-init as it is;
without it, user-data is made of the structured inputs. Whether cloud-init starts over is decided by the instance ID, a
digest of the material, the revision and the machine, never of what is rendered here: a later version of this program
may render better, and no machine's first boot runs again because of that.

Sources: cloud-init's documentation, "NoCloud", "User data formats", "Users and Groups", "Set Passwords"; crypt(5).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shim import cloudinit, volume
from shim.errors import FormatError, Refused, printable
from shim.rootdir import RootDir
from shim.spec import Machine

KINDS = ("cloud-init", "exec")

_RAW = ("user-data", "vendor-data")
_STRUCTURED = ("user", "password", "ssh-authorized-keys", "packages", "runcmd", "package-upgrade")
_SEED = "/var/lib/cloud/seed/nocloud"
_DROP_IN = "/etc/cloud/cloud.cfg.d/99-stateful-pods.cfg"
_DISABLED = "/etc/cloud/cloud-init.disabled"
# The list must be one line, because ds-identify reads it with a shell. And without `fs_label: null` a block device of
# the node that is labelled cidata would be merged over our seed.
_DROP_IN_CONTENT = b"""\
# Written by stateful-pods at every start.
datasource_list: [NoCloud, None]
datasource: {NoCloud: {fs_label: null}}
network: {config: disabled}
preserve_hostname: true
manage_etc_hosts: false
growpart: {mode: "off"}
resize_rootfs: false
ssh_deletekeys: false
"""

# What cloud-init knows user-data by, in any case and after any white space (its handlers/__init__.py, user_data.py).
_HEADERS = (b"#cloud-config", b"#!", b"#include", b"#cloud-boothook", b"#part-handler", b"## template: jinja")
_GZIP = b"\x1f\x8b"
_MIME, _MIME_WITHIN = b"mime-version:", 4096

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)  # useradd(8)
_PACKAGE = re.compile(r"[A-Za-z0-9@][!-~]*", re.ASCII)  # one word, and never an option of the package manager
_KEY = re.compile(r"(?:^|[ \t])((?:ssh|ecdsa|sk)-[\w@.-]+)[ \t]+([A-Za-z0-9+/]+={0,2})(?:[ \t]|$)", re.ASCII)
# crypt(5), with each hash's exact length: a truncated one would lock its owner out. The first three kinds are those
# that cloud-init recognises in the password of the default user; any other would become the password as it stands.
_RECOGNISED_HASH = re.compile(
    r"\$1\$[^$:\s]{1,8}\$[./A-Za-z0-9]{22}"
    r"|\$2[ay]\$\d\d\$[./A-Za-z0-9]{53}"
    r"|\$(?:5\$(?:rounds=\d+\$)?[^$:\s]{1,16}\$[./A-Za-z0-9]{43}|6\$(?:rounds=\d+\$)?[^$:\s]{1,16}\$[./A-Za-z0-9]{86})",
    re.ASCII,
)
_OTHER_HASH = re.compile(
    r"\$2b\$\d\d\$[./A-Za-z0-9]{53}"
    r"|\$g?y\$[./A-Za-z0-9]+\$[./A-Za-z0-9]*\$[./A-Za-z0-9]{43}"
    r"|\$7\$[./A-Za-z0-9]{11,97}\$[./A-Za-z0-9]{43}",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What was done: the `kind`, the `instance_id` that cloud-init is given, and whether any file was `changed`."""

    kind: str
    instance_id: str | None = None
    changed: bool = False


def provision(
    rootfs: Path,
    kind: str,
    directory: Path,
    revision: str,
    machine: Machine,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Provisioned:
    """Write the seed of kind ``cloud-init`` into `rootfs`; for ``exec`` write nothing.

    `directory` holds the material; if it does not exist there is none. Another `revision`, which may be any text, makes
    cloud-init start over; so does another `machine`, unless the volume's record says that it has moved and kept its
    identity. Everything is checked before anything is written. Raises `FormatError`, naming the file but not its
    content, for malformed material and for a record that cannot be understood; `Refused` for a volume that is not
    seeded, and for a root filesystem that would not start cloud-init.
    """
    if kind not in KINDS:
        raise FormatError(f"the provisioning is {printable(kind)!r}; expected {' or '.join(KINDS)} (SHIM_PROVISIONING)")
    volume.require_seeded(rootfs)
    if kind == "exec":
        return Provisioned(kind)
    material = read_material(directory)
    identifier = instance_id(material, revision, _as_recorded(machine, rootfs))
    with RootDir(rootfs) as root:
        cloudinit.require(root)
        if "user-data" in material:
            user_data = material["user-data"]
            if shadowed := [name for name in _STRUCTURED if name in material]:
                tell(f"raw user-data is given and replaces everything else: not used are {', '.join(shadowed)}")
        else:
            user_data = render(material, "/bin/bash" if root.stat("/bin/bash", follow=True) else "/bin/sh")
        seed = {"meta-data": f"instance-id: {identifier}\n".encode(), "user-data": user_data}
        changed = _write(root, seed, material.get("vendor-data"))
        if root.remove(_DISABLED):
            tell(f"removed {_DISABLED}, which kept cloud-init from starting")
    tell(f"cloud-init is given {', '.join(sorted(material)) or 'no material'}, as instance {identifier}")
    return Provisioned(kind, identifier, changed)


def _as_recorded(machine: Machine, rootfs: Path) -> Machine:
    """Return `machine` with what its volume's record says of where it has moved from, if that is its record."""
    recorded = volume.read_record(rootfs).machine
    return recorded if recorded == machine else machine


def _write(root: RootDir, seed: Mapping[str, bytes], vendor_data: bytes | None) -> bool:
    root.make_directories("/var/lib/cloud/seed")
    root.make_directories(_SEED, 0o700)
    root.make_directories("/etc/cloud/cloud.cfg.d")
    seed = seed if vendor_data is None else {**seed, "vendor-data": vendor_data}
    changes = [root.write(_DROP_IN, _DROP_IN_CONTENT)]
    changes += [root.write(f"{_SEED}/{name}", content, 0o600) for name, content in seed.items()]
    changes += [root.remove(f"{_SEED}/vendor-data")] if vendor_data is None else []
    return any(changes)


def read_material(directory: Path) -> dict[str, bytes]:
    """Return the files of `directory` by name, without those that hold nothing but white space, which say nothing.

    Kubernetes mounts them as links into a directory ``..data``; names that begin with ``..`` are its own. Raises
    `FormatError` for a name that is not known, and for user-data or vendor-data that cloud-init would ignore.
    """
    try:
        names = sorted(path.name for path in directory.iterdir() if not path.name.startswith(".."))
        known = [*_RAW, *_STRUCTURED]
        if unknown := [name for name in names if name not in known]:
            raise FormatError(
                f"{printable(str(directory))} holds {', '.join(map(printable, unknown))}, which means nothing here; "
                f"the names that do are {', '.join(known)}"
            )
        material = {name: content for name in names if (content := (directory / name).read_bytes()).strip()}
    except OSError as error:
        if isinstance(error, FileNotFoundError) and str(error.filename) == str(directory):
            return {}
        at = printable(str(error.filename))
        raise Refused(f"cannot read the provisioning material {at}: {error.strerror}") from error
    for name in _RAW:
        if name in material and not _is_known_form(material[name]):
            shown = ", ".join(header.decode() for header in _HEADERS)
            raise FormatError(
                f"cloud-init would ignore {name}: it begins with none of {shown}, and is neither MIME nor gzip. If it "
                "is YAML, its first line must be #cloud-config"
            )
    return material


def _is_known_form(content: bytes) -> bool:
    start = content[:_MIME_WITHIN].lower()
    return content.startswith(_GZIP) or start.lstrip().startswith(_HEADERS) or _MIME in start


def instance_id(material: Mapping[str, bytes], revision: str, machine: Machine) -> str:
    """Return the instance ID: equal for equal material, revision and machine, whatever is rendered from them."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in material.items()}
    document = {"machine": machine.identity.names, "material": digests, "revision": revision}
    return "stateful-pods-v1-" + hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def render(material: Mapping[str, bytes], shell: str) -> bytes:
    """Return the structured inputs as cloud-config; `shell` is the one of a named user. Raises `FormatError`.

    A named user is the only one that is made: who names one does not expect the distribution's own beside it, with
    passwordless sudo and nobody's key.
    """
    config: dict[str, object] = {}
    user = _one(material, "user", _USER, "a user name of lower-case letters, digits, - and _, at most 32")
    keys = _items(material, "ssh-authorized-keys", _is_key, "a public key: a type such as ssh-ed25519, and its base64")
    password = _password(material, named=user is not None)
    if user:
        account: dict[str, object] = {"name": user, "shell": shell, "sudo": ["ALL=(ALL) NOPASSWD:ALL"]}
        account["lock_passwd"] = password is None
        # Not `passwd`, which cloud-init ignores for a user that exists already.
        account |= {"hashed_passwd": password} if password else {}
        account |= {"ssh_authorized_keys": keys} if keys else {}
        config["users"] = [account]
    else:
        config |= {"password": password, "chpasswd": {"expire": False}} if password else {}
        config |= {"ssh_authorized_keys": keys} if keys else {}
    if upgrade := _one(material, "package-upgrade", re.compile("true|false"), "true or false"):
        config["package_upgrade"] = upgrade == "true"
    if packages := _items(material, "packages", lambda text: bool(_PACKAGE.fullmatch(text)), "the name of a package"):
        config["packages"] = packages
    if commands := _items(material, "runcmd", lambda text: "\0" not in text, "a command without a NUL byte"):
        config["runcmd"] = commands
    return b"#cloud-config\n" + _yaml(config)


def _yaml(config: Mapping[str, object]) -> bytes:
    """JSON is YAML, so the shim needs no YAML library, but for two things: in YAML a pair of surrogates is not one
    character, and some characters are refused or fold a line. All but ASCII is written as YAML's own escape."""
    text = json.dumps(config, indent=2, ensure_ascii=False)
    return re.sub(r"[^\n -~]", lambda found: f"\\U{ord(found[0]):08x}", text).encode("ascii") + b"\n"


def _password(material: Mapping[str, bytes], *, named: bool) -> str | None:
    password = _text(material, "password").strip() or None
    if password is None or _RECOGNISED_HASH.fullmatch(password) or (named and _OTHER_HASH.fullmatch(password)):
        return password
    if _OTHER_HASH.fullmatch(password):
        raise FormatError(
            "password: without a named user cloud-init takes no hash of this kind (yescrypt, scrypt, bcrypt 2b): the "
            "hash itself would become the password. Name a user, or make the hash with `openssl passwd -6`"
        )
    raise FormatError(
        "password: expected a crypt hash, whole and alone in the file, such as `openssl passwd -6` makes; what is "
        "there is none, and is not shown"
    )


def _is_key(line: str) -> bool:
    """Tell whether a line of authorized_keys holds a key: a type, and a blob that begins with the same (RFC 4253)."""
    for found in _KEY.finditer(line):
        kind, blob = found[1].encode(), found[2]
        try:
            if base64.b64decode(blob, validate=True).startswith(len(kind).to_bytes(4, "big") + kind):
                return True
        except binascii.Error:
            continue
    return False


def _one(material: Mapping[str, bytes], name: str, pattern: re.Pattern[str], expected: str) -> str | None:
    text = _text(material, name).strip()
    if text and not pattern.fullmatch(text):
        raise FormatError(f"{name}: expected {expected}. What is there is not shown")
    return text or None


def _items(material: Mapping[str, bytes], name: str, check: Callable[[str], bool], expected: str) -> list[str]:
    """Return the items of a list, one a line; empty lines and those that begin with # are none."""
    items = []
    for number, line in enumerate(_text(material, name).split("\n"), 1):
        item = line.strip()
        if not item or item.startswith("#"):
            continue
        if not check(item):
            raise FormatError(f"{name}, line {number}: expected {expected}. What is there is not shown")
        items.append(item)
    return items


def _text(material: Mapping[str, bytes], name: str) -> str:
    try:
        return material.get(name, b"").decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: expected UTF-8 text; byte {error.start + 1} is none") from error
