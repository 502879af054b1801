"""cloud-init is given exactly the material that there is, in a form that it takes, or nothing is written at all."""

from __future__ import annotations

import base64
import gzip
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shim import volume
from shim.errors import FormatError, Refused
from shim.prepare import prepare
from shim.provision import Provisioned, instance_id, provision, read_material, render
from shim.spec import Machine, Source
from shim.volume import Record

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")

REX = Machine("pets", "zoo", "rex")
SEED = "var/lib/cloud/seed/nocloud"
DROP_IN = "etc/cloud/cloud.cfg.d/99-stateful-pods.cfg"

SHA512 = "$6$" + "s" * 16 + "$" + "a" * 86
SHA256 = "$5$rounds=5000$" + "s" * 8 + "$" + "a" * 43
MD5 = "$1$" + "s" * 8 + "$" + "a" * 22
BCRYPT_2A = "$2a$10$" + "a" * 53
BCRYPT_2B = "$2b$12$" + "a" * 53
YESCRYPT = "$y$j9T$" + "s" * 22 + "$" + "a" * 43
GOST_YESCRYPT = "$gy$j9T$" + "s" * 22 + "$" + "a" * 43
SCRYPT = "$7$" + "C" * 11 + "s" * 16 + "$" + "a" * 43


def _key(kind: str) -> str:
    blob = len(kind).to_bytes(4, "big") + kind.encode() + bytes(36)
    return f"{kind} {base64.b64encode(blob).decode()}"


ED25519 = _key("ssh-ed25519")


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A root that runs systemd, with cloud-init as Debian's package leaves it."""
    root = tmp_path / "rootfs"
    _program(root / "usr/bin/cloud-init")
    _program(root / "usr/bin/bash")
    _program(root / "usr/lib/systemd/systemd")
    _program(root / "usr/lib/systemd/system-generators/cloud-init-generator")
    for unit in ("cloud-init.target", "cloud-init-local.service", "cloud-init-main.service"):
        _file(root / "usr/lib/systemd/system" / unit, "[Unit]\n")
    wants = root / "etc/systemd/system/cloud-init.target.wants"
    wants.mkdir(parents=True)
    (wants / "cloud-init-local.service").symlink_to("/usr/lib/systemd/system/cloud-init-local.service")
    for name in ("bin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "sbin").mkdir()
    (root / "sbin/init").symlink_to("../lib/systemd/systemd")
    _record(root, REX)
    return root


@pytest.fixture
def material(tmp_path: Path) -> Path:
    (tmp_path / "material").mkdir()
    return tmp_path / "material"


def _file(path: Path, text: str = "x\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _program(path: Path) -> None:
    _file(path)
    path.chmod(0o755)


def _fill(directory: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        (directory / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _provision(
    rootfs: Path, revision: str = "1", machine: Machine = REX, tell: Callable[[str], None] = lambda _: None
) -> Provisioned:
    return provision(rootfs, "cloud-init", rootfs.parent / "material", revision, machine, tell=tell)


def _tree(root: Path) -> dict[str, tuple[int, int, int]]:
    paths = (root, *sorted(root.rglob("*")))
    return {str(path): (path.lstat().st_ino, path.lstat().st_mode, path.lstat().st_ctime_ns) for path in paths}


def _config(rootfs: Path) -> Any:
    text = (rootfs / SEED / "user-data").read_text()
    assert text.startswith("#cloud-config\n")
    return yaml.safe_load(text)


# What is written


def test_the_seed_is_complete_and_private_also_without_any_material(rootfs: Path, material: Path) -> None:
    done = _provision(rootfs)
    files = {path.name: path for path in (rootfs / SEED).iterdir()}
    assert sorted(files) == ["meta-data", "user-data"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert stat.S_IMODE((rootfs / SEED).stat().st_mode) == 0o700
    assert stat.S_IMODE((rootfs / "var/lib/cloud").stat().st_mode) == 0o755
    assert yaml.safe_load(files["meta-data"].read_text()) == {"instance-id": done.instance_id}
    assert _config(rootfs) == {}
    assert done.changed


def test_the_drop_in_holds_cloud_init_to_our_seed_and_off_what_the_pod_owns(rootfs: Path, material: Path) -> None:
    _provision(rootfs)
    text = (rootfs / DROP_IN).read_text()
    assert yaml.safe_load(text) == {
        "datasource_list": ["NoCloud", "None"],
        "datasource": {"NoCloud": {"fs_label": None}},
        "network": {"config": "disabled"},
        "preserve_hostname": True,
        "manage_etc_hosts": False,
        "growpart": {"mode": "off"},
        "resize_rootfs": False,
        "ssh_deletekeys": False,
    }
    assert "\ndatasource_list: [NoCloud, None]\n" in text  # ds-identify reads one line, with a shell
    assert stat.S_IMODE((rootfs / DROP_IN).stat().st_mode) == 0o644


def test_a_second_start_with_the_same_material_touches_nothing(rootfs: Path, material: Path) -> None:
    _fill(material, {"user": "ada", "vendor-data": "#cloud-config\n{}\n"})
    first = _provision(rootfs)
    before = _tree(rootfs)
    again = _provision(rootfs)
    assert again == Provisioned("cloud-init", first.instance_id, changed=False)
    assert _tree(rootfs) == before


def test_exec_writes_nothing_and_looks_at_nothing(rootfs: Path, tmp_path: Path) -> None:
    before = _tree(rootfs)
    assert provision(rootfs, "exec", tmp_path / "missing", "1", REX) == Provisioned("exec")
    assert _tree(rootfs) == before


def test_another_kind_is_refused(rootfs: Path, material: Path) -> None:
    with pytest.raises(FormatError, match=r"'ignition'; expected cloud-init or exec \(SHIM_PROVISIONING\)"):
        provision(rootfs, "ignition", material, "1", REX)


def test_vendor_data_goes_when_it_is_no_longer_given(rootfs: Path, material: Path) -> None:
    _fill(material, {"vendor-data": "#!/bin/sh\ntrue\n"})
    _provision(rootfs)
    assert (rootfs / SEED / "vendor-data").read_text() == "#!/bin/sh\ntrue\n"
    (material / "vendor-data").unlink()
    assert _provision(rootfs).changed
    assert not (rootfs / SEED / "vendor-data").exists()


def test_the_distributions_own_disabled_marker_is_removed_and_that_is_said(rootfs: Path, material: Path) -> None:
    _file(rootfs / "etc/cloud/cloud-init.disabled", "")
    told: list[str] = []
    _provision(rootfs, tell=told.append)
    assert not (rootfs / "etc/cloud/cloud-init.disabled").exists()
    assert "removed /etc/cloud/cloud-init.disabled, which kept cloud-init from starting" in told


def test_links_that_the_guest_planted_lead_nowhere(rootfs: Path, material: Path) -> None:
    host = rootfs.parent / "host"
    _file(host / "user-data", "the host's own\n")
    (rootfs / SEED).mkdir(parents=True)
    (rootfs / SEED / "user-data").symlink_to(host / "user-data")
    (rootfs / SEED / "meta-data").symlink_to("/etc/shadow")
    _file(rootfs / "etc/shadow", "root:*\n")
    _fill(material, {"user": "ada"})
    _provision(rootfs)
    assert (host / "user-data").read_text() == "the host's own\n"
    assert (rootfs / "etc/shadow").read_text() == "root:*\n"
    assert not (rootfs / SEED / "user-data").is_symlink()


def test_a_seed_directory_that_points_to_the_host_is_refused(rootfs: Path, material: Path) -> None:
    (rootfs.parent / "host").mkdir()
    (rootfs / "var/lib").mkdir(parents=True)
    (rootfs / "var/lib/cloud").symlink_to(rootfs.parent / "host")
    with pytest.raises(Refused, match=r"/var/lib/cloud in .* is a link to nothing"):
        _provision(rootfs)
    assert list((rootfs.parent / "host").iterdir()) == []


# The material


def test_material_is_read_through_the_links_of_a_projected_volume(rootfs: Path, material: Path) -> None:
    _fill_projected(material, "..2026_11_30", {"user": "ada"})
    first = _provision(rootfs)
    assert _config(rootfs)["users"][0]["name"] == "ada"
    (material / "..data").unlink()
    _fill_projected(material, "..2026_12_01", {"user": "bob"})
    assert _provision(rootfs).instance_id != first.instance_id
    assert _config(rootfs)["users"][0]["name"] == "bob"


def _fill_projected(directory: Path, version: str, files: dict[str, str]) -> None:
    """Lay `files` out as the kubelet's atomic writer does."""
    for name, text in files.items():
        _file(directory / version / name, text)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..data").symlink_to(version)


def test_a_directory_that_does_not_exist_holds_no_material(rootfs: Path) -> None:
    told: list[str] = []
    _provision(rootfs, tell=told.append)
    assert _config(rootfs) == {}
    assert told[-1].startswith("cloud-init is given no material, as instance stateful-pods-v1-")


@pytest.mark.parametrize("name", ["user_data", "userdata", "passwd", "meta-data", "network-config", ".hidden", "a\nb"])
def test_a_name_that_is_not_known_is_refused_with_those_that_are(rootfs: Path, material: Path, name: str) -> None:
    _fill(material, {name: "x", "user": "ada"})
    before = _tree(rootfs)
    with pytest.raises(FormatError) as caught:
        _provision(rootfs)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(
        "user-data, vendor-data, user, password, ssh-authorized-keys, packages, runcmd, package-upgrade"
    )
    assert _tree(rootfs) == before


def test_a_link_to_nothing_and_a_directory_are_named(rootfs: Path, material: Path) -> None:
    (material / "user").symlink_to("..data/user")
    with pytest.raises(Refused, match="material/user: No such file"):
        _provision(rootfs)
    (material / "user").unlink()
    (material / "user").mkdir()
    with pytest.raises(Refused, match="material/user: Is a directory"):
        _provision(rootfs)


def test_files_that_hold_nothing_are_as_if_they_were_not_there(rootfs: Path, material: Path) -> None:
    without = _provision(rootfs)
    _fill(material, dict.fromkeys(("user-data", "vendor-data", "user", "password", "packages", "runcmd"), " \n"))
    assert _provision(rootfs) == Provisioned("cloud-init", without.instance_id, changed=False)
    assert not (rootfs / SEED / "vendor-data").exists()


# Raw user-data

RAW: dict[str, bytes] = {
    "cloud-config": b"#cloud-config\npackages: [vim]\n",
    "script": b"#!/bin/sh\ntrue\n",
    "include": b"#include-once\nhttps://example.org/a\n",
    "archive": b"#cloud-config-archive\n- type: text/plain\n",
    "boothook": b"#cloud-boothook\ntrue\n",
    "part handler": b"#part-handler\n",
    "jinja": b"## template: jinja\n#cloud-config\n{}\n",
    "capitals after empty lines": b"\n\n#Cloud-Config\n{}\n",
    "MIME": b'Content-Type: multipart/mixed; boundary="x"\nMIME-Version: 1.0\n\n--x--\n',
    "gzip": gzip.compress(b"#cloud-config\n{}\n"),
}


@pytest.mark.parametrize("content", RAW.values(), ids=RAW)
def test_raw_user_data_arrives_byte_for_byte(rootfs: Path, material: Path, content: bytes) -> None:
    _fill(material, {"user-data": content, "vendor-data": content})
    _provision(rootfs)
    assert (rootfs / SEED / "user-data").read_bytes() == content
    assert (rootfs / SEED / "vendor-data").read_bytes() == content


@pytest.mark.parametrize("name", ["user-data", "vendor-data"])
@pytest.mark.parametrize(
    "content", [b"packages: [vim]\n", b"# cloud-config\n", b"cloud-config\n", b"\xef\xbb\xbf#cloud-config\n"]
)
def test_what_cloud_init_would_ignore_is_refused_before_anything_is_written(
    rootfs: Path, material: Path, name: str, content: bytes
) -> None:
    _fill(material, {name: content})
    before = _tree(rootfs)
    with pytest.raises(FormatError, match=f"would ignore {name}: .*first line must be #cloud-config"):
        _provision(rootfs)
    assert _tree(rootfs) == before


def test_raw_user_data_replaces_the_structured_inputs_and_says_which(rootfs: Path, material: Path) -> None:
    _fill(material, {"user-data": "#cloud-config\n{}\n", "user": "ada", "password": SHA512, "packages": "vim\n"})
    told: list[str] = []
    _provision(rootfs, tell=told.append)
    assert (rootfs / SEED / "user-data").read_text() == "#cloud-config\n{}\n"
    assert told[0] == "raw user-data is given and replaces everything else: not used are user, password, packages"
    assert all(SHA512 not in message for message in told)


# The structured inputs


def test_a_named_user_is_the_only_one_and_may_do_everything(rootfs: Path, material: Path) -> None:
    _fill(material, {"user": "ada\n", "password": f"{YESCRYPT}\n", "ssh-authorized-keys": f"{ED25519} ada@home\n"})
    _provision(rootfs)
    assert _config(rootfs) == {
        "users": [
            {
                "name": "ada",
                "shell": "/bin/bash",
                "sudo": ["ALL=(ALL) NOPASSWD:ALL"],
                "lock_passwd": False,
                "hashed_passwd": YESCRYPT,
                "ssh_authorized_keys": [f"{ED25519} ada@home"],
            }
        ]
    }


def test_a_named_user_without_a_password_has_none(rootfs: Path, material: Path) -> None:
    (rootfs / "usr/bin/bash").unlink()
    _fill(material, {"user": "ada"})
    _provision(rootfs)
    assert _config(rootfs)["users"] == [
        {"name": "ada", "shell": "/bin/sh", "sudo": ["ALL=(ALL) NOPASSWD:ALL"], "lock_passwd": True}
    ]


def test_without_a_name_keys_and_password_go_to_the_distributions_user(rootfs: Path, material: Path) -> None:
    _fill(material, {"password": SHA512, "ssh-authorized-keys": ED25519})
    _provision(rootfs)
    assert _config(rootfs) == {
        "password": SHA512,
        "chpasswd": {"expire": False},
        "ssh_authorized_keys": [ED25519],
    }


def test_lists_are_one_item_a_line(rootfs: Path, material: Path) -> None:
    packages = "\n# editors\nvim\r\n  nginx=1.26.*  \n\ng++\n"
    commands = "echo 'a: b' # not a comment\n#never\n\nprintf '\\t\"%s\"' \"$HOME\"\n"
    _fill(material, {"packages": packages, "runcmd": commands, "package-upgrade": "true\n"})
    _provision(rootfs)
    assert _config(rootfs) == {
        "package_upgrade": True,
        "packages": ["vim", "nginx=1.26.*", "g++"],
        "runcmd": ["echo 'a: b' # not a comment", 'printf \'\\t"%s"\' "$HOME"'],
    }


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n"), min_size=1)))
def test_every_text_survives_the_way_through_yaml(commands: list[str]) -> None:
    expected = [text for command in commands if (text := command.strip()) and not text.startswith("#")]
    rendered = render({"runcmd": "\n".join(commands).encode()}, "/bin/sh")
    assert yaml.safe_load(rendered) == ({"runcmd": expected} if expected else {})
    assert rendered.isascii()


def test_characters_that_yaml_folds_or_refuses_arrive(rootfs: Path, material: Path) -> None:
    command = "echo \U0001f600 \x85 \u2028 \x7f \ufffe \x1b[0m : - ? &x *y !z %"
    _fill(material, {"runcmd": command})
    _provision(rootfs)
    assert _config(rootfs)["runcmd"] == [command]


HASHES = {
    "SHA-512": SHA512,
    "SHA-256 with rounds": SHA256,
    "MD5": MD5,
    "bcrypt 2a": BCRYPT_2A,
}
HASHES_FOR_A_NAME = {
    "bcrypt 2b": BCRYPT_2B,
    "yescrypt": YESCRYPT,
    "gost-yescrypt": GOST_YESCRYPT,
    "scrypt": SCRYPT,
}


@pytest.mark.parametrize("password", (HASHES | HASHES_FOR_A_NAME).values(), ids=HASHES | HASHES_FOR_A_NAME)
def test_every_kind_of_hash_is_taken_for_a_named_user(password: str) -> None:
    config = yaml.safe_load(render({"user": b"ada", "password": password.encode()}, "/bin/sh"))
    assert config["users"][0]["hashed_passwd"] == password


@pytest.mark.parametrize("password", HASHES.values(), ids=HASHES)
def test_a_hash_that_cloud_init_recognises_is_taken_for_the_default_user(password: str) -> None:
    assert yaml.safe_load(render({"password": password.encode()}, "/bin/sh"))["password"] == password


@pytest.mark.parametrize("password", HASHES_FOR_A_NAME.values(), ids=HASHES_FOR_A_NAME)
def test_a_hash_that_cloud_init_would_set_as_the_password_is_refused(password: str) -> None:
    with pytest.raises(FormatError, match="the hash itself would become the password") as caught:
        render({"password": password.encode()}, "/bin/sh")
    assert password not in str(caught.value)


BAD_HASHES = {
    "a password": "hunter2",
    "a truncated hash": SHA512[:-1],
    "one character too many": SHA512 + "a",
    "a locked account": "!" + SHA512,
    "a hash and its name": f"ada:{SHA512}",
    "two lines": f"{SHA512}\n{SHA512}",
    "a colon in the salt": SHA512.replace("ssss", "ss:s", 1),
    "no salt": "$6$$" + "a" * 86,
    "an unknown kind": "$99$salt$" + "a" * 86,
    "DES": "abcdefghijklm",
    "a random password": "RANDOM",
}


@pytest.mark.parametrize("password", BAD_HASHES.values(), ids=BAD_HASHES)
@pytest.mark.parametrize("user", [b"ada", b""])
def test_what_is_no_hash_is_refused_and_never_shown(user: bytes, password: str) -> None:
    with pytest.raises(FormatError, match="expected a crypt hash") as caught:
        render({"user": user, "password": password.encode()}, "/bin/sh")
    assert password not in str(caught.value)


KEYS = {
    "plain": ED25519,
    "with a comment": f"{ED25519} ada lovelace",
    "with options": f'from="10.0.0.0/8, example.org",command="echo ssh-rsa AAAA" {ED25519} ada',
    "ecdsa": _key("ecdsa-sha2-nistp256"),
    "a security key": _key("sk-ssh-ed25519@openssh.com"),
    "a certificate": _key("ssh-ed25519-cert-v01@openssh.com"),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_every_form_of_a_public_key_is_taken(key: str) -> None:
    config = yaml.safe_load(render({"ssh-authorized-keys": f"# mine\n{key}\n".encode()}, "/bin/sh"))
    assert config == {"ssh_authorized_keys": [key]}


BAD_KEYS = {
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "a fingerprint": "SHA256:abcdef",
    "a blob without its type": ED25519.split()[1],
    "a type without its blob": "ssh-ed25519",
    "another type than the blob's": ED25519.replace("ssh-ed25519", "ssh-rsa"),
    "a blob that is cut": ED25519[:-1],
    "a URL": "https://example.org/ada.keys",
}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_what_is_no_public_key_is_refused_by_line_and_never_shown(key: str) -> None:
    with pytest.raises(FormatError, match="ssh-authorized-keys, line 2: expected a public key") as caught:
        render({"ssh-authorized-keys": f"{ED25519}\n{key}\n".encode()}, "/bin/sh")
    assert key not in str(caught.value).replace("a type such as ssh-ed25519", "")


BAD_INPUTS: dict[str, tuple[str, bytes, str]] = {
    "a user with capitals": ("user", b"Ada", "user: expected a user name"),
    "two users": ("user", b"ada\nbob", "user: expected a user name"),
    "an option for a user": ("user", b"-ada", "user: expected a user name"),
    "a user that is too long": ("user", b"a" * 33, "at most 32"),
    "a user that is not UTF-8": ("user", b"ad\xffa", "user: expected UTF-8 text; byte 3 is none"),
    "yes for true": ("package-upgrade", b"yes", "package-upgrade: expected true or false"),
    "two packages on a line": ("packages", b"vim\nnginx curl", "packages, line 2: expected the name of a package"),
    "an option for a package": ("packages", b"--purge", "packages, line 1"),
    "a NUL byte in a command": ("runcmd", b"true\n\nfalse\0", "runcmd, line 3"),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_a_malformed_input_is_named_before_anything_is_written(
    rootfs: Path, material: Path, name: str, content: bytes, message: str
) -> None:
    _fill(material, {name: content})
    before = _tree(rootfs)
    with pytest.raises(FormatError) as caught:
        _provision(rootfs)
    assert message in str(caught.value)
    assert "not shown" in str(caught.value) or "UTF-8" in str(caught.value)
    assert _tree(rootfs) == before


@pytest.mark.parametrize("name", ["user", "package-upgrade", "password", "ssh-authorized-keys", "packages"])
def test_no_input_s_content_is_shown_where_it_is_malformed(name: str) -> None:
    with pytest.raises(FormatError, match=f"{name}.*not shown") as caught:
        render({name: b"-S3CRET pasted into the wrong file"}, "/bin/sh")
    assert "S3CRET" not in str(caught.value)


def test_package_upgrade_may_be_switched_off() -> None:
    assert yaml.safe_load(render({"package-upgrade": b"false\n"}, "/bin/sh")) == {"package_upgrade": False}


def test_what_is_told_names_the_inputs_and_not_what_they_hold(rootfs: Path, material: Path) -> None:
    _fill(material, {"user": "ada", "password": SHA512, "ssh-authorized-keys": ED25519, "runcmd": "echo secret"})
    told: list[str] = []
    done = _provision(rootfs, tell=told.append)
    assert told == [f"cloud-init is given password, runcmd, ssh-authorized-keys, user, as instance {done.instance_id}"]


# The instance ID


def test_the_instance_id_is_fixed_for_ever() -> None:
    expected = "stateful-pods-v1-47b618ec2eda9b1bbd22f2d1260346a0ef7da3d92eab30001d7ad1cd4e49c2ba"
    assert instance_id({"user": b"ada\n"}, "1", REX) == expected


@pytest.mark.parametrize(
    ("files", "revision", "machine"),
    [
        ({"user": b"ada\n"}, "2", REX),
        ({"user": b"ada\n"}, "1", Machine("pets", "zoo", "toto")),
        ({"user": b"ada\n"}, "1", Machine("pets2", "zoo", "rex")),
        ({"user": b"bob\n"}, "1", REX),
        ({"user": b"ada\n", "packages": b"vim"}, "1", REX),
        ({"runcmd": b"ada\n"}, "1", REX),
        ({}, "1", REX),
    ],
)
def test_material_revision_and_machine_each_make_another_instance(
    files: dict[str, bytes], revision: str, machine: Machine
) -> None:
    assert instance_id(files, revision, machine) != instance_id({"user": b"ada\n"}, "1", REX)


def _record(root: Path, machine: Machine) -> None:
    """Give a volume the record that it was seeded for `machine`."""
    _file(root / ".stateful-pods/seeding")
    source = Source.oci("registry.example.org/a:1")
    volume.write_record(root, Record(source, datetime(2026, 11, 30, tzinfo=UTC), machine))


def _seeded(root: Path, machine: Machine) -> None:
    """Give a volume the record that it was seeded for `machine`, which has started."""
    _record(root, machine)
    prepare(root, machine)


def test_a_volume_that_is_not_seeded_is_refused_before_anything_is_written(rootfs: Path, material: Path) -> None:
    (rootfs / ".stateful-pods/provisioned").rename(rootfs / ".stateful-pods/seeding")
    with pytest.raises(Refused, match="is interrupted, not seeded"):
        provision(rootfs, "cloud-init", material, "1", REX)
    assert not (rootfs / "var/lib/cloud").exists()


TOTO = Machine("pets", "zoo", "toto")


def test_a_machine_that_has_moved_with_its_identity_stays_the_same_instance(rootfs: Path, material: Path) -> None:
    _seeded(rootfs, REX)
    _fill(material, {"user": "ada"})
    first = _provision(rootfs)
    assert first.instance_id == instance_id({"user": b"ada"}, "1", REX)
    prepare(rootfs, TOTO, "keep")
    assert _provision(rootfs, machine=TOTO) == Provisioned("cloud-init", first.instance_id, changed=False)
    assert _provision(rootfs, "2", TOTO).instance_id == instance_id({"user": b"ada"}, "2", REX)
    _fill(material, {"user": "bob"})
    assert _provision(rootfs, machine=TOTO).instance_id == instance_id({"user": b"bob"}, "1", REX)


@pytest.mark.parametrize("moved_before", [False, True])
def test_a_clone_is_another_instance(rootfs: Path, material: Path, moved_before: bool) -> None:
    _seeded(rootfs, REX)
    if moved_before:
        prepare(rootfs, Machine("pets", "zoo", "third"), "keep")
    prepare(rootfs, TOTO)
    assert _provision(rootfs, machine=TOTO).instance_id == instance_id({}, "1", TOTO)


def test_the_record_of_another_machine_says_nothing_of_this_one(rootfs: Path, material: Path) -> None:
    _seeded(rootfs, REX)
    prepare(rootfs, TOTO, "keep")
    third = Machine("pets", "zoo", "third")
    assert _provision(rootfs, machine=third).instance_id == instance_id({}, "1", third)


def test_a_record_that_cannot_be_read_stops_before_anything_is_written(rootfs: Path, material: Path) -> None:
    _seeded(rootfs, REX)
    (rootfs / ".stateful-pods/provisioned").write_text("{")
    before = _tree(rootfs)
    with pytest.raises(FormatError, match="counts as seeded all the same"):
        _provision(rootfs)
    assert _tree(rootfs) == before


def test_the_instance_does_not_follow_what_is_rendered(rootfs: Path, material: Path) -> None:
    _fill(material, {"user": "ada"})
    first = _provision(rootfs)
    (rootfs / "usr/bin/bash").unlink()  # so the shell that is rendered is another one
    again = _provision(rootfs)
    assert again == Provisioned("cloud-init", first.instance_id, changed=True)


def test_material_is_read_by_name_and_in_bytes(material: Path) -> None:
    _fill(material, {"user": "ada\n", "user-data": RAW["gzip"], "runcmd": ""})
    assert read_material(material) == {"user": b"ada\n", "user-data": RAW["gzip"]}


# Whether cloud-init would start

Change = Callable[[Path], object]


def _all(*changes: Change) -> Change:
    return lambda root: [change(root) for change in changes]


def _without(name: str) -> Change:
    return lambda root: (root / name).unlink()


def _linked(name: str, text: str) -> Change:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(text)

    return change


def _without_systemd(*changes: Change) -> Change:
    return _all(_without("sbin/init"), lambda root: _program(root / "sbin/init"), *changes)


def _script(name: str, text: str) -> Change:
    """An init script, and the link to it from a runlevel."""
    return _without_systemd(lambda root: _program(root / "etc/init.d/cloud-init-local"), _linked(name, text))


GENERATOR = "usr/lib/systemd/system-generators/cloud-init-generator"
WANTED = "etc/systemd/system/cloud-init.target.wants/cloud-init-local.service"
UNWANTED_TARGET = "neither a generator nor a target that is reached at boot wants cloud-init.target"

OBSTACLES: dict[str, tuple[Change, str]] = {
    "no program": (_without("usr/bin/cloud-init"), "has no cloud-init"),
    "a program that cannot run": (lambda root: (root / "usr/bin/cloud-init").chmod(0o644), "has no cloud-init"),
    "a program on the host": (
        _all(_without("usr/bin/cloud-init"), _linked("usr/bin/cloud-init", "/proc/self/exe")),
        "has no cloud-init",
    ),
    "no unit": (_without("usr/lib/systemd/system/cloud-init-local.service"), "no unit cloud-init-local.service"),
    "a unit that is not enabled": (_without(WANTED), "cloud-init-local.service is not enabled"),
    "a target that nothing wants": (_without(GENERATOR), UNWANTED_TARGET),
    "a generator that cannot run": (lambda root: (root / GENERATOR).chmod(0o644), UNWANTED_TARGET),
    "a masked generator": (_linked("etc/systemd/system-generators/cloud-init-generator", "/dev/null"), UNWANTED_TARGET),
    "a masked target": (_linked("etc/systemd/system/cloud-init.target", "/dev/null"), "cloud-init.target is masked"),
    "a masked stage": (
        _linked("etc/systemd/system/cloud-init-main.service", "../../../dev/null"),
        "cloud-init-main.service is masked",
    ),
    "a stage masked by an empty file": (
        lambda root: _file(root / "etc/systemd/system/cloud-init-local.service", ""),
        "cloud-init-local.service is masked",
    ),
    "another init that starts nothing": (_without_systemd(), "its init is not systemd"),
    "sysvinit that stops it": (_script("etc/rc2.d/K01cloud-init-local", "../init.d/cloud-init-local"), "no runlevel"),
    "OpenRC with a script that is gone": (_script("etc/runlevels/boot/cloud-init-local", "/etc/gone"), "no runlevel"),
    "OpenRC that starts it at shutdown": (
        _script("etc/runlevels/shutdown/cloud-init-local", "/etc/init.d/cloud-init-local"),
        "no runlevel",
    ),
}


@pytest.mark.parametrize(("change", "reason"), OBSTACLES.values(), ids=OBSTACLES)
def test_a_root_that_would_not_start_cloud_init_is_refused_before_anything_is_written(
    rootfs: Path, material: Path, change: Change, reason: str
) -> None:
    change(rootfs)
    _file(rootfs / "etc/cloud/cloud-init.disabled", "")
    _fill(material, {"user": "ada"})
    before = _tree(rootfs)
    with pytest.raises(Refused) as caught:
        _provision(rootfs)
    message = str(caught.value)
    assert reason in message
    assert "Set the machine's provisioning to exec, or seed a new volume from a source with cloud-init" in message
    assert "Then delete this pod" in message
    assert _tree(rootfs) == before


STARTED: dict[str, Change] = {
    "by a target's own link instead of a generator": _all(
        _without(GENERATOR), _linked("etc/systemd/system/multi-user.target.wants/cloud-init.target", "/usr/lib/x")
    ),
    "by a link of the first stage": _all(
        _without(GENERATOR),
        _without(WANTED),
        _linked("usr/lib/systemd/system/sysinit.target.wants/cloud-init-local.service", "../x"),
    ),
    "by systemd without a link called init": _without("sbin/init"),
    "by OpenRC": _script("etc/runlevels/boot/cloud-init-local", "/etc/init.d/cloud-init-local"),
    "by sysvinit": _script("etc/rc2.d/S01cloud-init-local", "../init.d/cloud-init-local"),
}


@pytest.mark.parametrize("change", STARTED.values(), ids=STARTED)
def test_every_way_in_which_an_init_starts_it_is_recognised(rootfs: Path, material: Path, change: Change) -> None:
    change(rootfs)
    assert _provision(rootfs).changed
