"""Digests, and the readers and writers that hold bytes to them."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import FormatError, VerificationError
from shim.image.digest import Digest, HashingWriter, VerifyingReader

ZEROS = "sha256:" + "0" * 64


@pytest.mark.parametrize("text", [ZEROS, "sha512:" + "a" * 128])
def test_a_well_formed_digest_is_written_as_it_was_read(text: str) -> None:
    assert str(Digest.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "0" * 64,
        "sha256",
        "sha256:",
        "sha256:" + "0" * 63,
        "sha256:" + "0" * 65,
        "sha256:" + "A" * 64,
        "sha256:" + "٣" * 64,
        "sha256:" + "0" * 63 + "\n",
        "sha256:" + "0" * 64 + "\n",
        "sha256:" + "../" * 21 + "0",
        "sha256::" + "0" * 63,
        "SHA256:" + "0" * 64,
        " sha256:" + "0" * 64,
        "sha512:" + "0" * 64,
        "md5:" + "0" * 32,
        "sha256+b64:" + "0" * 64,
        "../../etc:" + "0" * 64,
        "sha256:\0" + "0" * 63,
    ],
)
def test_a_malformed_digest_cannot_be_made(text: str) -> None:
    with pytest.raises(FormatError):
        Digest.parse(text)


@given(st.text())
def test_whatever_is_accepted_is_safe_in_a_path_and_a_url(text: str) -> None:
    try:
        digest = Digest.parse(text)
    except FormatError:
        return
    assert digest.encoded.isalnum()
    assert str(digest) == text


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
@pytest.mark.parametrize("amount", [1, 7, 1 << 20, -1])
def test_the_reader_hands_out_all_bytes_in_any_portions(algorithm: str, amount: int) -> None:
    data = b"some bytes" * 100
    digest = Digest(algorithm, hashlib.new(algorithm, data).hexdigest())
    with VerifyingReader(io.BytesIO(data), digest, len(data), "it") as reader:
        assert b"".join(iter(lambda: reader.read(amount), b"")) == data
        assert reader.read(amount) == b""


@pytest.mark.parametrize("size", [None, 4])
def test_an_unstated_size_is_not_checked(size: int | None) -> None:
    VerifyingReader(io.BytesIO(b"data"), Digest.of(b"data"), size, "it").finish()


@pytest.mark.parametrize(
    ("found", "size", "message"),
    [
        (b"datA", 4, f"it does not match its digest: expected {Digest.of(b'data')}, found {Digest.of(b'datA')} over 4"),
        (b"dat", 4, "it ended after 3 bytes; its descriptor states 4"),
        (b"", 4, "it ended after 0 bytes; its descriptor states 4"),
        (b"data!", 4, "it is longer than the 4 bytes that its descriptor states"),
        (b"data", 3, "it is longer than the 3 bytes that its descriptor states"),
        (b"data", 5, "it ended after 4 bytes; its descriptor states 5"),
        (b"data!", None, "it does not match its digest"),
    ],
)
def test_other_bytes_than_the_promised_are_refused(found: bytes, size: int | None, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        VerifyingReader(io.BytesIO(found), Digest.of(b"data"), size, "it").finish()
    with pytest.raises(VerificationError, match=message):
        VerifyingReader(io.BytesIO(found), Digest.of(b"data"), size, "it").read(-1)


def test_a_mismatch_is_raised_again_at_each_further_read() -> None:
    reader = VerifyingReader(io.BytesIO(b"datA"), Digest.of(b"data"), 4, "it")
    assert reader.read(4) == b"datA"
    for _ in range(2):
        with pytest.raises(VerificationError):
            reader.read(4)


def test_a_read_of_nothing_is_not_taken_for_the_end() -> None:
    reader = VerifyingReader(io.BytesIO(b"data"), Digest.of(b"data"), 4, "it")
    assert reader.read(0) == b""
    assert reader.read(-1) == b"data"


def test_leaving_the_block_closes_the_source() -> None:
    source = io.BytesIO(b"data")
    with VerifyingReader(source, Digest.of(b"data"), 4, "it"):
        pass
    assert source.closed


def test_the_writer_goes_on_after_a_short_write(tmp_path: Path) -> None:
    class Short(io.FileIO):
        def write(self, data: object) -> int:
            return super().write(bytes(data)[:3])  # type: ignore[call-overload]

    with Short(tmp_path / "file", "w") as file:
        writer = HashingWriter(file)
        writer.write(b"0123456789")
        writer.write(b"")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
    assert (writer.digest, writer.size) == (Digest.of(b"0123456789"), 10)
