"""Whether a published layer is the upstream's signed archive: the one step that only the upstream can prove."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from presetbuild.build import Options, open_archive
from presetbuild.catalog import Preset
from presetbuild.fetch import Source, open_source
from presetbuild.findings import WRONG, Audit, Part, State, expect
from presetbuild.image import DIFF_ID, UPSTREAM_KEY, UPSTREAM_SHA256
from presetbuild.keys import Keyring
from presetbuild.upstream import lxc
from presetbuild.verify import verify_list
from shim.errors import NotFound, NotReady, Unavailable


def check_upstream(part: Part, upstream: Upstream | None, result: Audit) -> None:
    """Establish from the upstream's signed list and archive that the layer is that archive, where that can be done."""
    subject = f"{part.shown} provenance"
    word = "that the layer is the signed archive, decompressed, rests on the builder's word"
    if upstream is None or part.platform not in upstream.build.directories:
        result.note(State.UNPROVEN, subject, f"{word}: the upstream was not asked")
        return
    try:
        established = upstream.compare(part)
    except (NotFound, NotReady) as error:
        result.note(State.UNPROVEN, subject, f"{word}: {error}")
    except Unavailable as error:
        if upstream.mirror:
            raise
        result.note(State.UNPROVEN, subject, f"{word}: {error}")
    except WRONG as error:
        result.note(State.DIFFERS, subject, str(error))
    else:
        result.note(State.HOLDS, subject, "the upstream's signed archive, decompressed, is the layer")
        if "variant" not in established:
            words = "the signed list covers no metadata, so that it is this variant rests on where it was found"
            result.note(State.UNPROVEN, subject, words)


@dataclass(frozen=True, slots=True)
class Upstream:
    """What it takes to ask the upstream, or the `mirror` that stands in for it."""

    preset: Preset
    build: lxc.Build
    keyring: Keyring
    mirror: Source | None
    options: Options

    def compare(self, part: Part) -> tuple[str, ...]:
        """Verify the signed list and the archive again, and raise unless the part was made from them.

        Returns the properties of the build that its signed metadata confirmed.
        """
        url = self.preset.upstream.url
        source = self.mirror or open_source(url, progress=self.options.progress)
        untrusted = lxc.fetch_lists(source, self.build, part.platform, url)
        signed = verify_list(untrusted, self.keyring, now=self.options.now or datetime.now(UTC))
        annotations = part.manifest.annotations
        expect(annotations.get(UPSTREAM_KEY), signed.signature.primary, UPSTREAM_KEY)
        expect(annotations.get(UPSTREAM_SHA256), signed.archive_digest.encoded, UPSTREAM_SHA256)
        verified = open_archive(signed, self.preset, source)
        hasher = hashlib.sha256()
        for data in verified.chunks():
            hasher.update(data)
        expect(annotations.get(DIFF_ID), f"sha256:{hasher.hexdigest()}", "the diff ID")
        return verified.established
