"""Blobs on their way to and from a registry: what survives a connection that does not."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from io import RawIOBase
from typing import TYPE_CHECKING

from shim.errors import NotFound, Refused, Unavailable
from shim.image.digest import CHUNK, Digest, HashingWriter
from shim.image.model import Descriptor
from shim.image.progress import Progress
from shim.image.retry import Interrupted, Patience

if TYPE_CHECKING:
    from shim.image.transport import Answer

_PIECE = 256 << 10  # bytes sent at once; as fast as a larger one, and a slow line moves it within the timeout


class Download:
    """The bytes of a blob, unverified: goes on where it was when a connection breaks.

    `get` asks for the blob with the given headers, in one attempt. Bytes of two answers are joined only if the second
    is a 206 that begins where the first stopped; any other is read from its start, and what is known already is
    skipped. Either way the digest over the whole proves the join. Raises `NotFound`, `Refused` and `Unavailable`.
    """

    def __init__(
        self,
        get: Callable[[Mapping[str, str]], Answer],
        descriptor: Descriptor,
        patience: Patience,
        progress: Progress,
    ) -> None:
        self._get = get
        self._what = f"download {_short(descriptor.digest)}"
        self._size = descriptor.size
        self._patience = patience
        self._progress = progress
        self._at = 0
        self._ranges = True
        self._answer: Answer | None = patience.run(self._open)

    def read(self, amount: int, /) -> bytes:
        """Return up to `amount` bytes, ``b""`` where the blob ends."""
        while True:
            try:
                with self._patience.limit():
                    self._answer = self._answer or self._open()
                    data = self._answer.read(amount)
                if not data and self._at < self._size and self._broke_off(self._answer):
                    raise Interrupted(f"{self._answer.what}: the answer ended after {self._at} of {self._size} bytes")
            except Interrupted as error:
                self.close()
                self._patience.pause(error)
                continue
            self._at += len(data)
            self._patience.moved(len(data), self._what)
            if data:
                self._progress(self._what, self._at, self._size)
            return data

    def close(self) -> None:
        """Drop the connection."""
        if self._answer:
            self._answer.close()
            self._answer = None

    @staticmethod
    def _broke_off(answer: Answer) -> bool:
        # A complete answer to a request for the whole says how long the blob is: then it is just too short.
        return answer.status == 206 or "Content-Length" not in answer.headers

    def _open(self) -> Answer:
        if self._at and self._ranges:
            answer = self._get({"Range": f"bytes={self._at}-"})
            if answer.status == 206 and self._continues(answer.headers.get("Content-Range", "")):
                return answer
            if answer.status != 200:
                answer.close()
                self._ranges = False
                answer = self._get({})
        else:
            answer = self._get({})
        if answer.status == 404:
            answer.drain()
            raise NotFound(f"{answer.what}: there is no such blob, or these credentials may not see it")
        if answer.status != 200:
            raise unexpected(answer)
        left = self._at
        while left:
            data = answer.read(min(left, CHUNK))
            if not data:
                answer.close()
                raise Interrupted(f"{answer.what}: the answer ended within the {self._at} bytes that came before")
            left -= len(data)
            self._patience.moved(0, self._what)
        return answer

    def _continues(self, content_range: str) -> bool:
        match = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", content_range, re.ASCII)
        return match is not None and match[1] == str(self._at) and match[2] in ("*", str(self._size))


class Body:
    """A file's bytes as the body of a request, from the first byte each time that it is sent."""

    def __init__(self, file: RawIOBase, descriptor: Descriptor, patience: Patience, progress: Progress) -> None:
        self._file = file
        self._size = descriptor.size
        self._patience = patience
        self._what = f"upload {_short(descriptor.digest)}"
        self._progress = progress

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        self._file.seek(0)
        sent, buffer = 0, bytearray(_PIECE)
        view = memoryview(buffer)
        while count := self._file.readinto(buffer):
            yield view[:count]
            sent += count
            self._patience.moved(0, self._what)  # it starts again from the first byte, so none is progress
            self._progress(self._what, sent, self._size)


class Upload:
    """A blob that is collected in a temporary `file`, and handed to `send` at `commit`."""

    def __init__(self, file: RawIOBase, send: Callable[[Descriptor, RawIOBase], None]) -> None:
        self._file = file
        self._send = send
        self._writer = HashingWriter(file)

    def write(self, data: bytes) -> None:
        """Append `data`."""
        try:
            self._writer.write(data)
        except OSError as error:
            raise Unavailable(
                f"cannot write a temporary file in {tempfile.gettempdir()}: {error.strerror}; "
                "make room there, or name another directory in TMPDIR"
            ) from error

    def commit(self, media_type: str) -> Descriptor:
        """Send the blob unless it is there already, and return its descriptor."""
        descriptor = Descriptor(media_type, self._writer.digest, self._writer.size)
        self._send(descriptor, self._file)
        return descriptor


def unexpected(answer: Answer) -> Refused | Unavailable:
    """Return the error for an answer that nothing else accounts for, with the server's own words."""
    said = answer.said()
    message = f"{answer.what}: HTTP {answer.status}{': ' + said if said else ''}"
    return Unavailable(f"{message}; try again later") if answer.status >= 500 else Refused(message)


def _short(digest: Digest) -> str:
    return f"{digest.algorithm}:{digest.encoded[:12]}"
