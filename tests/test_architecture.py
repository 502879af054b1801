"""The arrows and rules of the design hold, and the checker that says so sees what it should."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.architecture import FUNCTION_LINES, MODULE_LINES, STAGES, read_modules, violations

ROOT = Path(__file__).parents[1]

LONG_FUNCTION = "def long():\n" + "    pass\n" * FUNCTION_LINES

# What is wrong: the files of a tree, and the beginning of the one line that must name it.
WRONG: Mapping[str, tuple[Mapping[str, str], str]] = {
    "shim imports presetbuild": (
        {"shim/seed.py": "from presetbuild.catalog import Catalog", "presetbuild/catalog.py": "Catalog = 1"},
        "shim.seed:1 imports presetbuild.catalog, against",
    ),
    "presetbuild imports the shim's own modules": (
        {"presetbuild/build.py": "import shim.seed", "shim/seed.py": ""},
        "presetbuild.build:1 imports shim.seed, against",
    ),
    "presetbuild imports the shim's public face": (
        {"presetbuild/build.py": "from shim import Machine", "shim/__init__.py": "Machine = 1"},
        "presetbuild.build:1 imports shim, against",
    ),
    "a submodule through its package": (
        {"presetbuild/build.py": "from shim import seed", "shim/__init__.py": "", "shim/seed.py": ""},
        "presetbuild.build:1 imports shim.seed, against",
    ),
    "a relative import": (
        {"shim/image/model.py": "from ..volume import State", "shim/volume.py": "State = 1"},
        "shim.image.model:1 imports shim.volume, against",
    ),
    "an import in a function": (
        {"shim/image/layout.py": "def f():\n    from shim import volume\n", "shim/volume.py": ""},
        "shim.image.layout:2 imports shim.volume, against",
    ),
    "an import for the type checker alone": (
        {
            "shim/image/layout.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shim.volume\n",
            "shim/volume.py": "",
        },
        "shim.image.layout:3 imports shim.volume, against",
    ),
    "an import by name": (
        {"shim/run.py": "import importlib\nimportlib.import_module('shim.volume')\n", "shim/volume.py": ""},
        "shim.run:2 imports shim.volume, against",
    ),
    "the digest imports the model": (
        {"shim/image/digest.py": "import shim.image.model", "shim/image/model.py": ""},
        "shim.image.digest:1 imports shim.image.model, against",
    ),
    "a module that does not exist": (
        {"shim/seed.py": "import shim.gone"},
        "shim.seed:1 imports shim.gone, which does not exist",
    ),
    "one stage imports another": (
        {"shim/boot.py": "from shim import seed", "shim/seed.py": ""},
        "shim.boot:1 imports shim.seed: stages",
    ),
    "a library imports a command": (
        {"presetbuild/demo.py": "from presetbuild import console", "presetbuild/console.py": ""},
        "presetbuild.demo:1 imports presetbuild.console: a library",
    ),
    "a cycle of three": (
        {"shim/a.py": "import shim.b", "shim/b.py": "import shim.c", "shim/c.py": "def f():\n    import shim.a\n"},
        "import cycle: shim.",
    ),
    "click in a library": ({"shim/seed.py": "import click"}, "shim.seed:1 imports click,"),
    "gnupg in the builder": ({"presetbuild/build.py": "import gnupg"}, "presetbuild.build:1 imports gnupg,"),
    "cryptography in a submodule's form": (
        {"presetbuild/build.py": "from cryptography.hazmat import primitives"},
        "presetbuild.build:1 imports cryptography,",
    ),
    "rich in a library": ({"presetbuild/fetch.py": "from rich import progress"}, "presetbuild.fetch:1 imports rich,"),
    "oras outside of the image package": ({"presetbuild/fetch.py": "import oras"}, "presetbuild.fetch:1 imports oras,"),
    "oras in two modules": (
        {"shim/image/registry.py": "import oras.provider", "shim/image/layout.py": "import oras"},
        "oras is imported by shim.image.layout and shim.image.registry",
    ),
    "a process started elsewhere": (
        {"presetbuild/layer.py": "def f():\n    import subprocess\n"},
        "presetbuild.layer:2 imports subprocess,",
    ),
    "os.system": ({"shim/seed.py": "import os\nos.system('true')"}, "shim.seed:2 uses os.system,"),
    "os.fork under another name": (
        {"shim/seed.py": "from os import fork as f\nf()"},
        "shim.seed:2 uses os.fork,",
    ),
    "os.execv under another name": ({"shim/seed.py": "import os as o\no.execv('', [])"}, "shim.seed:2 uses os.execv,"),
    "a pool of processes": (
        {"shim/seed.py": "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor()"},
        "shim.seed:2 uses concurrent.futures.ProcessPoolExecutor,",
    ),
    "a library prints": ({"presetbuild/build.py": "print('done')"}, "presetbuild.build:1 uses print,"),
    "a library writes to standard error": (
        {"presetbuild/build.py": "import sys\nsys.stderr.write('')"},
        "presetbuild.build:2 uses sys.stderr.write,",
    ),
    "a library exits": ({"presetbuild/build.py": "import sys\nsys.exit(1)"}, "presetbuild.build:2 uses sys.exit,"),
    "a library raises SystemExit": ({"shim/seed.py": "raise SystemExit"}, "shim.seed:1 uses SystemExit,"),
    "a Verified made elsewhere": (
        {
            "presetbuild/layer.py": "from presetbuild.verify import Verified\nVerified()",
            "presetbuild/verify.py": "class Verified: ...",
        },
        "presetbuild.layer:2 uses Verified,",
    ),
    "a Verified made through its module": (
        {
            "presetbuild/layer.py": "from presetbuild import verify\nverify.Verified()",
            "presetbuild/verify.py": "class Verified: ...",
        },
        "presetbuild.layer:2 uses verify.Verified,",
    ),
    "logic in a package": ({"shim/__init__.py": "def f(): ..."}, "shim/__init__.py:1 holds logic"),
    "a module that is too long": ({"shim/seed.py": "\n" * (MODULE_LINES + 1)}, "shim.seed has 351 lines"),
    "a function that is too long": ({"shim/seed.py": LONG_FUNCTION}, "shim.seed:1 long has 61 lines"),
}

RIGHT: Mapping[str, Mapping[str, str]] = {
    "the builder uses the core": {
        "presetbuild/build.py": "from shim import run\nfrom shim.image import model\nfrom shim.errors import Refused",
        "shim/run.py": "import subprocess",
        "shim/errors.py": "",
        "shim/image/__init__.py": "",
        "shim/image/model.py": "from shim.image.digest import Digest\nfrom .. import errors",
        "shim/image/digest.py": "import shim.errors",
    },
    "the commands": {
        "shim/cli.py": "import click, sys\nprint(1)\nsys.exit(1)",
        "shim/__main__.py": "raise SystemExit(1)",
    },
    "the gate": {"presetbuild/verify.py": "class Verified: ...\nVerified()"},
    "a public face that imports late": {"shim/__init__.py": "def __getattr__(name): ..."},
    "names that only look alike": {"shim/seed.py": "self.print()\nparser.exit()\nfingerprint()\nx.Unverified()"},
}


def write_tree(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_the_design_holds() -> None:
    assert len(read_modules(ROOT)) > 10  # the tree was found at all
    assert violations(ROOT) == []


@pytest.mark.parametrize(("files", "expected"), WRONG.values(), ids=WRONG)
def test_the_checker_names_what_is_wrong(tmp_path: Path, files: Mapping[str, str], expected: str) -> None:
    write_tree(tmp_path, files)
    found = violations(tmp_path)
    assert len(found) == 1, found
    assert found[0].startswith(expected)


@pytest.mark.parametrize("files", RIGHT.values(), ids=RIGHT)
def test_the_checker_accepts_what_is_right(tmp_path: Path, files: Mapping[str, str]) -> None:
    write_tree(tmp_path, files)
    assert violations(tmp_path) == []


# A start on a seeded volume has no time for a registry client, nor has what only reads names and pins.
NO_REGISTRY = {
    **dict.fromkeys(("shim", "shim.errors", "shim.run", "shim.spec", "shim.volume", *STAGES), "oras requests"),
    **dict.fromkeys(("presetbuild", "presetbuild.catalog"), "oras"),
}


@pytest.mark.parametrize("name", [name for name in sorted(NO_REGISTRY) if name in read_modules(ROOT)])
def test_importing_it_imports_no_registry_client(name: str) -> None:
    program = (
        f"import sys, {name}; print(*[client for client in {NO_REGISTRY[name]!r}.split() if client in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("\n", "")
