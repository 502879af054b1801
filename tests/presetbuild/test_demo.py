"""The demonstration is a test of its own: it raises unless the build holds and both attacks are refused."""

from __future__ import annotations

import re
from pathlib import Path

from presetbuild.demo import run_demo
from presetbuild.findings import State


def test_the_demo_tells_the_whole_story(tmp_path: Path) -> None:
    lines: list[str] = []
    published = run_demo(lines.append, directory=tmp_path / "kept")
    story = "\n".join(lines)
    assert re.search(r"linux/amd64: SHA256SUMS is signed by [0-9A-F]{40} \(SHA512", story)
    assert story.count("the archive has the signed SHA-256") == 2
    assert f"{State.DIFFERS}:" not in story
    assert story.count("the upstream's signed archive, decompressed, is the layer") == 2
    assert re.search(r"4\. Attack.*\n   Refused: .*does not match its digest: expected sha256:", story)
    assert re.search(r"5\. Attack.*\n   Refused: .*it signs an older build", story)
    assert story.count("Nothing was published.") == 2
    assert published.reference in story
    assert (tmp_path / "kept/demo/index.json").is_file()
