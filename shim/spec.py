"""What the stages are handed: the machine that a volume belongs to, and the source that it is seeded from.

Both exist only in a well-formed state, and both are written into the volume's record with `to_json` and read back with
`from_json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from shim.errors import FormatError, Refused, printable
from shim.image.digest import Digest
from shim.image.model import Platform
from shim.image.reference import parse_reference

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.ASCII)  # Kubernetes: a DNS subdomain name
_NAME_LENGTH = 253
_PARTS = ("namespace", "release", "name")


@dataclass(frozen=True, slots=True)
class Machine:
    """Which machine this is: the namespace, the Helm release and the name that its owner chose.

    `moved_from` is the machine that one which has moved was at first, and is still in its own eyes. It is known from
    a record alone, so two machines are equal without it. Raises `FormatError` for a part that Kubernetes would not take
    as a name.
    """

    namespace: str
    release: str
    name: str
    moved_from: Machine | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for part in _PARTS:
            value = getattr(self, part)
            if not _NAME.fullmatch(value) or len(value) > _NAME_LENGTH:
                raise FormatError(
                    f"the machine's {part} is {printable(value)!r}; expected lower-case letters, digits, - and "
                    f". inside, at most {_NAME_LENGTH} characters"
                )

    @property
    def identity(self) -> Machine:
        """The machine whose identity this one has: its own, or the one that it brought from where it was at first."""
        return self.moved_from or self

    def __str__(self) -> str:
        return f"{self.name} (release {self.release}, namespace {self.namespace})"

    @property
    def names(self) -> dict[str, str]:
        """The three parts by what they are."""
        return {part: getattr(self, part) for part in _PARTS}

    def to_json(self) -> dict[str, object]:
        """Return the machine as the record holds it."""
        return {**self.names, **({"movedFrom": self.moved_from.to_json()} if self.moved_from else {})}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return the machine that `to_json` wrote; raises `FormatError`. Members that are not known are ignored."""
        if not isinstance(document, dict):
            raise FormatError("the machine in the record is not an object")
        names = {part: document[part] for part in _PARTS if part in document}
        missing = [part for part in _PARTS if part not in names]
        if missing:
            raise FormatError(f"the machine in the record lacks {', '.join(missing)}")
        original = document.get("movedFrom")
        moved_from = None if original is None else Machine.from_json(original)
        return cls(**_strings(names, "the machine"), moved_from=moved_from)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a root filesystem comes from. Make one with `Source.oci` or `Source.lxc`.

    `digest` is that of the image that was found, for the record; a source that is only asked for has none.
    """

    kind: str
    reference: str | None = None
    preset: str | None = None
    platform: Platform | None = None
    digest: Digest | None = None
    url: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "oci":
            self._only("reference", "preset", "platform", "digest")
            if not self.reference:
                raise Refused("a source of kind oci needs a reference (SHIM_SOURCE_REFERENCE)")
            parse_reference(self.reference)
        elif self.kind == "lxc":
            self._only("url", "sha256")
            if not self.url:
                raise Refused("a source of kind lxc needs a URL or a path (SHIM_SOURCE_URL)")
            if not self.sha256:
                raise Refused(
                    f"'{self}' needs the SHA-256 that its bytes must have (SHIM_SOURCE_SHA256): "
                    "nothing else says that they are the right ones"
                )
            Digest("sha256", self.sha256)
        else:
            raise FormatError(f"a source's kind is {printable(self.kind)!r}; expected oci or lxc (SHIM_SOURCE_KIND)")

    def _only(self, *allowed: str) -> None:
        extra = [field.name for field in fields(self)[1:] if getattr(self, field.name) and field.name not in allowed]
        if extra:
            raise Refused(f"a source of kind {self.kind} takes no {' and no '.join(extra)}")

    @classmethod
    def oci(cls, reference: str, *, preset: str | None = None, platform: Platform | None = None) -> Self:
        """Return an image as a source: a registry reference, or ``oci:DIR[:TAG|@DIGEST]``.

        `preset` is the name of the preset that led to it; `platform` is this node's unless it is given. Raises
        `FormatError` for a reference that is malformed.
        """
        return cls("oci", reference=reference, preset=preset, platform=platform)

    @classmethod
    def lxc(cls, url: str, sha256: str) -> Self:
        """Return a root filesystem archive as a source: its https URL or local path, and the SHA-256 of its bytes.

        `sha256` is 64 hexadecimal digits in either case. Raises `FormatError` for any other, `Refused` for none.
        """
        return cls("lxc", url=url, sha256=sha256.lower())

    def __str__(self) -> str:
        return printable(self.reference or self.public_url or "", limit=500)

    @property
    def public_url(self) -> str | None:
        """The URL, without what may be a secret in it: the user, the query and the fragment. A path has none."""
        if not self.url or "://" not in self.url:
            return self.url
        return re.sub(r"(?<=://)[^/]*@", "", re.split(r"[?#]", self.url, maxsplit=1)[0])

    def to_json(self) -> dict[str, str]:
        """Return the source as the record, which the guest can read, holds it: its URL is the public one.

        The platform is not in it: the digest says more.
        """
        members = {"kind": self.kind, "reference": self.reference, "digest": self.digest and str(self.digest)}
        members |= {"preset": self.preset, "url": self.public_url, "sha256": self.sha256}
        return {name: value for name, value in members.items() if value}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return the source that `to_json` wrote; raises `FormatError`. Members that are not known are ignored."""
        members = dict(_strings(document, "the source"))
        digest = members.pop("digest", None)
        known = {name: members[name] for name in ("reference", "preset", "url", "sha256") if name in members}
        try:
            return cls(members.get("kind", ""), digest=Digest.parse(digest) if digest else None, **known)
        except Refused as error:
            raise FormatError(f"the source in the record is malformed: {error}") from error


def _strings(document: object, what: str) -> Mapping[str, Any]:
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise FormatError(f"{what} in the record is not an object of strings")
    return document
