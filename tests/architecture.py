"""Reads a source tree with `ast` and names every place that breaks an arrow or a rule of the design.

Nothing is imported. An import counts wherever it stands: in a function, under TYPE_CHECKING, or by a literal name
through `importlib.import_module`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("shim", "presetbuild")

# Which of our own modules a module may import; the first pattern that fits decides, and none: all of its own package.
ARROWS = {
    "shim.errors": (),
    "shim.run": ("shim.errors", "shim.image.digest"),
    "shim.image.digest": ("shim.errors",),
    "shim.image.document": ("shim.errors",),
    "shim.image.model": ("shim.errors", "shim.image.digest", "shim.image.document"),
    "shim.image*": ("shim.errors", "shim.run", "shim.image", "shim.image.*"),
    "shim*": ("shim", "shim.*"),
    "presetbuild*": ("presetbuild", "presetbuild.*", "shim.errors", "shim.run", "shim.image", "shim.image.*"),
}
COMMANDS = ("shim.cli", "shim.__main__", "presetbuild.cli", "presetbuild.__main__")
DISPLAYS = ("presetbuild.console", "shim.console")
STAGES = frozenset(f"shim.{name}" for name in ("seed", "prepare", "customize", "provision", "boot"))

# Where a library may be imported.
LIBRARIES = {
    "click": ("shim.cli", "presetbuild.cli"),
    "gnupg": ("presetbuild.keys", "presetbuild.signature", "presetbuild.demo"),  # the demo makes a key of its own
    "cryptography": ("presetbuild.keys", "presetbuild.signature", "presetbuild.attest"),
    "oras": ("shim.image.*",),  # and in one module of these alone
    "rich": ("presetbuild.console",),
    "subprocess": ("shim.run",),
    "multiprocessing": ("shim.run",),
    "pty": ("shim.run",),
}
# Where something may be called; a pattern is matched against the dotted name as it is written.
CALLS = {
    "os.exec*": ("shim.run", "shim.boot", "shim.local"),  # becoming another program is what these two are for
    "os.fork*": ("shim.run", "shim.local"),
    "os.popen": ("shim.run",),
    "os.posix_spawn*": ("shim.run",),
    "os.spawn*": ("shim.run",),
    "os.system": (),
    "*create_subprocess_*": (),
    "*ProcessPoolExecutor": (),
    "print": (*COMMANDS, *DISPLAYS),
    "input": COMMANDS,
    "sys.exit": COMMANDS,
    "exit": (),
    "quit": (),
    "SystemExit": COMMANDS,
    "sys.std*.write*": (*COMMANDS, *DISPLAYS),
    "os._exit": ("shim.run", "shim.local"),
    "Verified": ("presetbuild.verify",),
    "*.Verified": (),
}

MODULE_LINES = 350
FUNCTION_LINES = 60


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name, the name that its relative imports start from, its syntax, its length."""

    name: str
    package: str
    tree: ast.Module = field(repr=False)
    lines: int

    @classmethod
    def read(cls, root: Path, path: Path) -> Module:
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        return cls(name, name if is_package else name.rpartition(".")[0], ast.parse(text), len(text.splitlines()))


def read_modules(root: Path) -> dict[str, Module]:
    """Return the modules of our packages under `root`, by dotted name."""
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {module.name: module for module in (Module.read(root, path) for path in paths)}


def violations(root: Path) -> list[str]:
    """Return a line for each place under `root` that breaks a rule."""
    modules = read_modules(root)
    imports = {name: sorted(set(_imports(module, modules))) for name, module in modules.items()}
    rules: tuple[Callable[[], Iterable[str]], ...] = (
        lambda: _wrong_arrows(imports, modules),
        lambda: _cycles(imports, modules),
        lambda: _misplaced_libraries(imports),
        lambda: _misplaced_calls(modules),
        lambda: _logic_in_packages(root, modules),
        lambda: _too_long(modules),
    )
    return [line for rule in rules for line in rule()]


def _imports(module: Module, modules: Mapping[str, Module]) -> Iterator[tuple[str, int]]:
    """Yield each name that `module` imports, with its line; a submodule by its own name."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                for alias in names:
                    origin = _absolute(module.package, base, level)
                    member = f"{origin}.{alias.name}"
                    yield (member if member in modules else origin), node.lineno
            case ast.Call(func=func, args=[ast.Constant(value=str(target)), *_]):
                if _dotted(func).rpartition(".")[2] in ("import_module", "__import__"):
                    yield target, node.lineno


def _absolute(package: str, base: str | None, level: int) -> str:
    if level == 0:
        return base or ""
    start = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join([*start, base] if base else start)


def _wrong_arrows(imports: Mapping[str, list[tuple[str, int]]], modules: Mapping[str, Module]) -> Iterator[str]:
    for name, targets in imports.items():
        allowed = next(allowed for pattern, allowed in ARROWS.items() if fnmatchcase(name, pattern))
        for target, line in targets:
            if target.partition(".")[0] not in PACKAGES:
                continue
            if target not in modules:
                yield f"{name}:{line} imports {target}, which does not exist"
            elif not _fits(target, allowed):
                yield f"{name}:{line} imports {target}, against the arrows"
            elif target in (*COMMANDS, *DISPLAYS) and name not in COMMANDS:
                yield f"{name}:{line} imports {target}: a library needs no command"
            elif name in STAGES and target in STAGES:
                yield f"{name}:{line} imports {target}: stages never import one another"


def _cycles(imports: Mapping[str, list[tuple[str, int]]], modules: Mapping[str, Module]) -> Iterator[str]:
    graph = {name: {target for target, _ in targets if target in modules} for name, targets in imports.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"import cycle: {' -> '.join(reversed(error.args[1]))}"


def _misplaced_libraries(imports: Mapping[str, list[tuple[str, int]]]) -> Iterator[str]:
    users: dict[str, set[str]] = {}
    for name, targets in imports.items():
        for target, line in targets:
            library = target.partition(".")[0]
            users.setdefault(library, set()).add(name)
            if not _fits(name, LIBRARIES.get(library, ("*",))):
                yield f"{name}:{line} imports {library}, which belongs into {' or '.join(LIBRARIES[library])}"
    if len(users.get("oras", ())) > 1:
        yield f"oras is imported by {' and '.join(sorted(users['oras']))}; one module imports it"


def _misplaced_calls(modules: Mapping[str, Module]) -> Iterator[str]:
    for name, module in modules.items():
        renamed = dict(_renamed(module.tree))
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call | ast.Raise):
                continue
            called = node.func if isinstance(node, ast.Call) else node.exc
            dotted = _dotted(called)
            head, dot, rest = dotted.partition(".")
            dotted = renamed.get(head, head) + dot + rest
            for pattern, allowed in CALLS.items():
                if dotted and fnmatchcase(dotted, pattern) and not _fits(name, allowed):
                    yield f"{name}:{node.lineno} uses {dotted}, which belongs into {' or '.join(allowed) or 'nothing'}"


def _renamed(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what local names stand for: ``from os import system as s`` makes ``s`` mean ``os.system``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                # Our own names are looked for as they are written, whatever module hands them on.
                ours = node.level > 0 or (node.module or "").partition(".")[0] in PACKAGES
                yield alias.asname or alias.name, alias.name if ours else f"{node.module}.{alias.name}"


def _logic_in_packages(root: Path, modules: Mapping[str, Module]) -> Iterator[str]:
    for name, module in modules.items():
        if not (root / Path(*name.split(".")) / "__init__.py").exists():
            continue
        for node in module.tree.body:
            lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While)
                and not lazy
            ):
                yield f"{name}/__init__.py:{node.lineno} holds logic; a package's __init__ names what is public"


def _too_long(modules: Mapping[str, Module]) -> Iterator[str]:
    for name, module in modules.items():
        if module.lines > MODULE_LINES:
            yield f"{name} has {module.lines} lines, more than {MODULE_LINES}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{name}:{node.lineno} {node.name} has {lines} lines, more than {FUNCTION_LINES}"


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _dotted(node: ast.AST | None) -> str:
    """Return ``a.b.c`` for that expression (or a call of it), and an empty string for any other."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
        case ast.Call(func=func):
            return _dotted(func)
    return ""
