"""One repository of a registry: blobs, manifests and tags over the OCI distribution API.

Every read is checked against a digest, every upload is checked by the registry against ours and its answer by us. How
requests are authenticated, and what is never sent where, stands in `shim.image.transport`, which is imported when a
repository is made and not before: it costs a quarter of a second, and most stages need no registry.

Source: OCI distribution specification v1.1.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from shim.errors import FormatError, NotFound, Refused, VerificationError, printable
from shim.image import credentials, urls
from shim.image.blobs import Body, Download, Upload, unexpected
from shim.image.digest import Digest, VerifyingReader
from shim.image.model import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_MANIFEST,
    Descriptor,
    Index,
    Manifest,
    check_raw,
    parse_manifest,
)
from shim.image.progress import Progress, silent
from shim.image.reference import check_host, check_repository, check_tag
from shim.image.retry import Interrupted, Patience, Retry

if TYPE_CHECKING:
    from shim.image.transport import Answer

_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_NO_HEAD = (400, 405, 406, 501)  # what servers say that do not know HEAD
_MAX_PAGES = 1000  # of tags


class RegistryRepository:
    """A `Repository` in a registry.

    `host` is ``HOST[:PORT]``, `push` says whether access to write is asked for, `progress` is told the bytes of each
    blob, `retry` bounds every operation. Credentials are those of ``docker login``. One repository is for one thread.
    """

    def __init__(
        self,
        host: str,
        repository: str,
        *,
        push: bool = False,
        progress: Progress = silent,
        retry: Retry = Retry(),  # noqa: B008  # immutable
    ) -> None:
        from shim.image.transport import Transport  # noqa: PLC0415  # it imports oras

        self.name = f"{check_host(host)}/{check_repository(repository, host)}"
        self._progress = progress
        self._retry = retry
        self._path = f"/v2/{repository}"
        self._transport = Transport(host, repository, "pull,push" if push else "pull", credentials.load(host))
        self._attempt = self._transport.attempt

    @property
    def is_plain(self) -> bool:
        """Whether the registry is spoken to without TLS, so that only a digest says what comes from it."""
        return urls.origin(self._transport.base).scheme == "http"

    def manifest(self, at: Descriptor | Digest | str) -> Manifest | Index:
        """Return the manifest or index at a descriptor, a digest or a tag; see `Repository`."""
        reference = at.digest if isinstance(at, Descriptor) else at
        what = f"{self.name}{':' + check_tag(reference) if isinstance(reference, str) else f'@{reference}'}"
        if isinstance(at, Descriptor) and at.size > MAX_MANIFEST:
            raise FormatError(f"{what} has {at.size} bytes; a manifest has {MAX_MANIFEST} at most")
        found = self._manifest_bytes(reference)
        if found is None:
            raise NotFound(f"{what} does not exist, or may not be seen with these credentials")
        raw, answer = found
        media_type = answer.headers.get("Content-Type") or (at.media_type if isinstance(at, Descriptor) else None)
        if isinstance(at, Descriptor):
            check_raw(raw, at, what)
        elif isinstance(at, Digest):
            check_raw(raw, Descriptor("", at, len(raw)), what)
        else:
            _agree(answer, raw, what)
        parsed = parse_manifest(raw, media_type, what)
        if isinstance(at, Descriptor) and parsed.media_type != at.media_type:
            raise FormatError(
                f"{what} is {printable(parsed.media_type)}; its descriptor states {printable(at.media_type)}"
            )
        return parsed

    def resolve(self, tag: str) -> Digest | None:
        """Return the digest that `tag` names at this moment, None if there is no such tag.

        It is taken over the manifest itself: what a registry states about one that it does not hand out proves nothing.
        """
        found = self._manifest_bytes(check_tag(tag))
        if found is None:
            return None
        _agree(found[1], found[0], f"{self.name}:{tag}")
        return Digest.of(found[0])

    def has_blob(self, descriptor: Descriptor) -> bool:
        """Say whether the blob is there in the right size."""
        return self._retry.start().run(lambda: self._has_blob(descriptor))

    def open_blob(self, descriptor: Descriptor) -> VerifyingReader:
        """Return a reader of the blob, which goes on where it was when the connection breaks."""
        path = f"{self._path}/blobs/{descriptor.digest}"
        body = Download(
            lambda headers: self._attempt("GET", path, headers=headers),
            descriptor,
            self._retry.start(),
            self._progress,
        )
        return VerifyingReader(body, descriptor.digest, descriptor.size, f"{self.name}@{descriptor.digest}")

    @contextmanager
    def new_blob(self) -> Iterator[Upload]:
        """Return a blob to write. It is collected in an unnamed temporary file: an upload may have to start again."""
        with tempfile.TemporaryFile(buffering=0) as file:
            yield Upload(cast(RawIOBase, file), self._send)

    def put_blob(self, data: bytes, media_type: str) -> Descriptor:
        """Store a small blob that is at hand whole."""
        with self.new_blob() as blob:
            blob.write(data)
            return blob.commit(media_type)

    def put_manifest(self, manifest: Manifest | Index, tag: str | None = None) -> None:
        """Store the raw bytes of `manifest`, by digest or, with `tag`, under that tag."""
        digest = Digest.of(manifest.raw)
        path = f"{self._path}/manifests/{digest if tag is None else check_tag(tag)}"
        headers = {"Content-Type": manifest.media_type}

        def once() -> None:
            answer = self._attempt("PUT", path, headers=headers, body=manifest.raw)
            _stored(answer, digest)

        self._retry.start(len(manifest.raw)).run(once)

    def tags(self) -> list[str]:
        """Return all tags, sorted; none for a repository that does not exist."""
        found: set[str] = set()
        url = f"{self._path}/tags/list?n=1000"
        patience = self._retry.start()
        for _ in range(_MAX_PAGES):
            page = self._tag_page(url, patience)
            patience.moved(0, f"the list of tags of {self.name}")
            if page is None:
                return sorted(found)
            tags, following = page
            found.update(tags)
            if following is None:
                return sorted(found)
            url = following
        raise Refused(f"{self.name}: the list of tags does not end after {_MAX_PAGES} pages")

    def _tag_page(self, url: str, patience: Patience) -> tuple[list[str], str | None] | None:
        def once() -> tuple[bytes, Answer] | None:
            return self._small("GET", url, {})

        found = patience.run(once)
        if found is None:
            return None
        raw, answer = found
        try:
            tags = json.loads(raw)["tags"] or []
            if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
                raise TypeError
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise FormatError(f"{answer.what}: the answer is no list of tags") from error
        link = re.search(r"<([^>]*)>[^,]*;\s*rel=\"?next\"?", answer.headers.get("Link", "")[:8192])
        following = urls.follow(answer.url, link[1]) if link else None
        if following and urls.origin(following) != urls.origin(self._transport.base):
            raise Refused(f"{answer.what}: the next page of tags is said to be elsewhere, at {urls.shown(following)}")
        return [check_tag(tag) for tag in tags], following

    def _manifest_bytes(self, reference: Digest | str) -> tuple[bytes, Answer] | None:
        url = f"{self._path}/manifests/{reference}"
        return self._retry.start().run(lambda: self._small("GET", url, {"Accept": _ACCEPT}))

    def _small(self, method: str, url: str, headers: dict[str, str]) -> tuple[bytes, Answer] | None:
        answer = self._attempt(method, url, headers=headers)
        if answer.status == 404:
            answer.drain()
            return None
        if answer.status != 200:
            raise unexpected(answer)
        return answer.whole(MAX_MANIFEST), answer

    def _has_blob(self, descriptor: Descriptor) -> bool:
        path = f"{self._path}/blobs/{descriptor.digest}"
        answer = self._attempt("HEAD", path)
        answer.drain()
        if answer.status not in (200, 404):
            # Blob stores elsewhere sign their URL for one method, so a 403 from there is about HEAD.
            if answer.status not in (403, *_NO_HEAD):
                raise unexpected(answer)
            answer = self._attempt("GET", path)
            answer.close()
        if answer.status == 404:
            return False
        if answer.status != 200:
            raise unexpected(answer)
        length = answer.headers.get("Content-Length", "")
        if re.fullmatch(r"[0-9]{1,19}", length):
            return int(length) == descriptor.size
        try:
            with self.open_blob(descriptor) as reader:
                reader.finish()
        except VerificationError:
            return False
        return True

    def _send(self, descriptor: Descriptor, file: RawIOBase) -> None:
        patience = self._retry.start(descriptor.size)
        body = Body(file, descriptor, patience, self._progress)
        patience.run(lambda: self._upload(descriptor, body))

    def _upload(self, descriptor: Descriptor, body: Body) -> None:
        """Store a blob, in one attempt.

        A new upload and a single PUT of the whole: the form that the specification requires of every registry, and
        that containerd and BuildKit use, so GHCR, ECR, Harbor, zot and distribution see it all day. An attempt that
        failed leaves nothing to go on with, so each one begins by asking whether the last one arrived after all.
        """
        if self._has_blob(descriptor):
            return
        answer = self._attempt("POST", f"{self._path}/blobs/uploads/")
        location = answer.headers.get("Location")
        if answer.status != 202 or not location:
            raise unexpected(answer)
        answer.drain()
        url = urls.follow(answer.url, location)
        url += f"{'&' if '?' in url else '?'}digest={quote(str(descriptor.digest), safe='')}"
        answer = self._attempt("PUT", url, headers={"Content-Type": "application/octet-stream"}, body=body)
        if answer.status == 404:  # another replica of the registry, or one that was restarted
            raise Interrupted(str(unexpected(answer)))
        _stored(answer, descriptor.digest)


def _stored(answer: Answer, digest: Digest) -> None:
    """Check what a registry says that it stored; raises `VerificationError` if it is not `digest`."""
    if answer.status not in (200, 201, 204):
        raise unexpected(answer)
    answer.drain()
    theirs = answer.headers.get("Docker-Content-Digest")
    if theirs is not None and theirs != str(digest):
        raise VerificationError(f"{answer.what}: sent {digest}, and the registry stored {printable(theirs)}")


def _agree(answer: Answer, raw: bytes, what: str) -> None:
    """Check the digest that a registry states for a tag against the bytes; raises `VerificationError`."""
    try:
        theirs = Digest.parse(answer.headers.get("Docker-Content-Digest", ""))
    except FormatError:
        return  # absent, or of a form that says nothing
    check = theirs.hasher()
    check.update(raw)
    if check.hexdigest() != theirs.encoded:
        raise VerificationError(
            f"{what}: the registry states {theirs}, but its answer is {theirs.algorithm}:{check.hexdigest()}"
        )
