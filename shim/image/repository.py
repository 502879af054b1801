"""The one small interface that every place where images live answers: an image layout, or a registry's repository."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from shim.image.digest import Digest, VerifyingReader
from shim.image.model import Descriptor, Index, Manifest


class BlobWriter(Protocol):
    """A blob that is being written. It does not exist for anybody else until `commit`; leaving the block without one
    discards it."""

    def write(self, data: bytes) -> None:
        """Append `data`."""

    def commit(self, media_type: str) -> Descriptor:
        """Finalise the blob, durably, and return its descriptor (sha256, size in bytes)."""


class Repository(Protocol):
    """Blobs and manifests by digest, and tags that name manifests.

    Every read is checked against the digest and the size that were asked for. Each method raises `Unavailable` for
    what a later try may cure, `VerificationError` for bytes that are not the promised ones, `FormatError` for a
    document that is malformed, `NotFound` for what is not there, and `Refused` where access is denied.
    """

    @property
    def name(self) -> str:
        """The repository as a person writes it, without tag and digest: ``oci:DIR`` or ``host/repository``."""

    def manifest(self, at: Descriptor | Digest | str) -> Manifest | Index:
        """Return the manifest or index at a descriptor, a digest or a tag."""

    def resolve(self, tag: str) -> Digest | None:
        """Return the digest that `tag` names at this moment, None if there is no such tag."""

    def has_blob(self, descriptor: Descriptor) -> bool:
        """Say whether the blob is there in the right size. Its bytes are not read."""

    def open_blob(self, descriptor: Descriptor) -> VerifyingReader:
        """Return a reader of the blob, to be used as a context manager."""

    def new_blob(self) -> AbstractContextManager[BlobWriter]:
        """Return a blob to write."""

    def put_blob(self, data: bytes, media_type: str) -> Descriptor:
        """Store a small blob that is at hand whole."""

    def put_manifest(self, manifest: Manifest | Index, tag: str | None = None) -> None:
        """Store the raw bytes of `manifest`, by digest or, with `tag`, under that tag (which moves if it exists)."""

    def tags(self) -> list[str]:
        """Return all tags, sorted."""
