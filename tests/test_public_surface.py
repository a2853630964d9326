"""One definition, one list, one page, one room: the public names read from the sources."""

import ast
import importlib
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src/axonym"
# Rooms and a file that the package itself uses too; what users see of them, `__all__` lists.
MIDDLE = {"axis.py", "engine", "layout", "names"}

SOURCES = {path: ast.parse(path.read_text(), str(path)) for path in sorted(SRC.rglob("*.py"))}
FILES = [path for path in SOURCES if path.name != "__init__.py"]
PACKAGES = [path for path in SOURCES if path.name == "__init__.py"]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def each(paths: list[Path]) -> Callable[[Callable[[Path], None]], Callable[[str], None]]:
    """Run a test for all paths of a folder: as a test for each, they would take longer to start than to run."""
    folders: dict[str, list[Path]] = {}
    for path in paths:
        folders.setdefault(str(path.parent.relative_to(SRC)), []).append(path)

    def of_folders(test: Callable[[Path], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize("folder", folders)
        def run(folder: str) -> None:
            for path in folders[folder]:
                test(path)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return of_folders


def dotted(path: Path) -> str:
    """Return the module's name below the package: `ops.reduce`."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def declared(path: Path) -> list[str] | None:
    """Return the literal `__all__` of a file."""
    for node in SOURCES[path].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


# `__all__` makes a file public. A layer for another library lists what that library lists, wherever it is defined: a
# guide is its page, and tests/compat compares it with the facts.
PUBLIC = [path for path in FILES if declared(path) is not None and not path.is_relative_to(SRC / "compat")]


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Yield the public functions and classes at the top of a module or class."""
    return (node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_"))


def assigned(tree: ast.Module) -> set[str]:
    """Return the names that a module assigns at its top: type aliases and constants."""
    targets: list[ast.expr] = []
    # What a name is to type checkers and what it is at run time stand in the two branches of `if TYPE_CHECKING`.
    branches = [part for node in tree.body if isinstance(node, ast.If) for part in (*node.body, *node.orelse)]
    for node in (*tree.body, *branches):
        targets += node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


@each(PUBLIC)
def test_all_lists_what_the_module_defines(path: Path) -> None:
    listed = declared(path) or []
    assert len(listed) == len(set(listed))
    defined = {node.name for node in definitions(SOURCES[path])}
    if path.relative_to(SRC).parts[0] not in MIDDLE:
        assert defined <= set(listed), f"not in __all__: {defined - set(listed)}"
    foreign = set(listed) - defined - assigned(SOURCES[path])
    assert not foreign, f"in __all__ but defined elsewhere: {foreign}"


@each(PACKAGES)
def test_a_package_file_only_lists(path: Path) -> None:
    body = SOURCES[path].body
    guarded = [part for node in body if isinstance(node, ast.If) for part in (*node.body, *node.orelse)]
    for node in (*(node for node in body if not isinstance(node, ast.If)), *guarded):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        is_list = isinstance(target, ast.Name) and target.id in {"__all__", "__version__"}
        is_lazy = ast.unparse(node).startswith("__all__, __getattr__, __dir__ = _lazy.names_of(")
        assert is_docstring or is_import or is_list or is_lazy, ast.unparse(node)


@each(PACKAGES)
def test_a_package_has_what_it_lists(path: Path) -> None:
    package = importlib.import_module(f"axonym.{dotted(path)}".removesuffix("."))
    listed = package.__all__ if path.parent == SRC else getattr(package, "__all__", [])
    assert len(listed) == len(set(listed))
    assert [name for name in listed if not hasattr(package, name)] == []


def test_the_package_shows_what_it_lists() -> None:
    axn = importlib.import_module("axonym")
    assert dir(axn) == sorted(axn.__all__)
    # Python adds the modules that were imported; all other names with an underscore are modules too.
    added = {name for name in vars(axn).keys() - {*axn.__all__} if not name.startswith("__")}
    assert [name for name in added if not isinstance(vars(axn)[name], types.ModuleType)] == []


def test_every_public_module_is_on_one_page() -> None:
    pages = [page.read_text() for page in (ROOT / "docs/api").rglob("*.md")]
    shown = [module for page in pages for module in re.findall(r"^::: axonym\.(\S+)$", page, re.MULTILINE)]
    assert [path for path in PUBLIC if shown.count(dotted(path)) != 1] == []


def test_every_top_level_name_is_on_a_page() -> None:
    axn = importlib.import_module("axonym")
    for name in axn.__all__:
        value = getattr(axn, name)
        if isinstance(value, types.ModuleType):
            continue
        # A type alias does not know its module: some public file has to list it.
        assert any(name in (declared(path) or []) for path in PUBLIC), f"no module with a page lists axonym.{name}"


def is_overload(node: Definition) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def lacking(node: Definition, owner: str) -> Iterator[str]:
    """Yield what a definition and its public members lack: docstrings, annotations."""
    name = f"{owner}{node.name}"
    if not (ast.get_docstring(node) or is_overload(node) or node.name.startswith("_")):
        yield f"line {node.lineno}: {name} has no docstring"
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            # Dunders need types; what they do, Python says.
            if isinstance(member, Definition) and (member.name[0] != "_" or member.name.endswith("__")):
                yield from lacking(member, f"{name}.")
        return
    arguments = [
        *node.args.posonlyargs,
        *node.args.args,
        *node.args.kwonlyargs,
        node.args.vararg,
        node.args.kwarg,
    ]
    for argument in arguments:
        if argument and argument.annotation is None and argument.arg not in {"self", "cls"}:
            yield f"line {node.lineno}: {name}({argument.arg}) has no annotation"
    if node.returns is None:
        yield f"line {node.lineno}: {name} has no return annotation"


@each(FILES)
def test_public_definitions_are_documented_and_annotated(path: Path) -> None:
    assert [message for node in definitions(SOURCES[path]) for message in lacking(node, "")] == []


@each(list(SOURCES))
def test_examples_have_the_heading_that_the_docs_know(path: Path) -> None:
    """Under another one, their prompts would be read as quotations."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(SOURCES[path]) if isinstance(node, documented)]
    assert not [text for text in texts if ">>>" in text and "Examples:\n" not in text]


def jax_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each name of JAX that a file uses, in full: `jnp.sum` is `jax.numpy.sum`."""
    full: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                full[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                full[name.asname or name.name] = f"{node.module}.{name.name}"
                yield node.lineno, f"{node.module}.{name.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            head, _, rest = chain.partition(".")
            if re.fullmatch(r"[\w.]+", chain) and head in full:
                yield node.lineno, f"{full[head]}.{rest}"


def is_private_to_jax(name: str) -> bool:
    root, *rest = name.split(".")
    if root not in {"jax", "jaxlib"} or name == "jax.core":  # jax.core by itself is met on the way to what it holds
        return False
    if any(part.startswith("_") and not part.startswith("__") for part in rest):
        return True
    return rest[:1] == ["interpreters"] or (rest[:1] == ["core"] and rest[1] != "Tracer")


@each(list(SOURCES))
def test_public_jax_only(path: Path) -> None:
    assert [(line, name) for line, name in jax_names(SOURCES[path]) if is_private_to_jax(name)] == []


def test_the_rule_about_jax_sees_what_it_should() -> None:
    source = """
import jax
import jax.numpy as jnp
import jax._src.core
from jax import core
from jax.core import Tracer
from jax.core import Jaxpr
jnp.sum, jax.core.Tracer, core.Tracer, jnp.__name__
jax.core.get_aval, core.ShapedArray, jnp._sum
"""
    found = [name for _, name in jax_names(ast.parse(source)) if is_private_to_jax(name)]
    assert found == [
        "jax._src.core",
        "jax.core.Jaxpr",
        "jax.core.get_aval",
        "jax.core.ShapedArray",
        "jax.numpy._sum",
    ]


@each([path for path in FILES if path.parent.name == "faults"])
def test_every_fault_is_shown_by_a_test_or_says_that_none_can(path: Path) -> None:
    text = " ".join((ast.get_docstring(SOURCES[path]) or "").split())
    shown = re.findall(r"tests/upstream/\w+\.py", text)
    assert shown or "There is no reproducer" in text
    assert all((ROOT / name).is_file() for name in shown)


@each([path for path in FILES if path.parent.name != "faults"])
def test_every_module_has_a_room_in_tests(path: Path) -> None:
    room = ROOT / "tests" / path.relative_to(SRC).parent / f"test_{path.stem.strip('_')}.py"
    assert room.is_file(), f"no {room.relative_to(ROOT)}"


def test_every_folder_of_tests_mirrors_one_of_src() -> None:
    here = Path(__file__).parent
    folders = {path.parent.relative_to(here) for path in here.rglob("test_*.py")}
    mirrored = {path.parent.relative_to(SRC) for path in SOURCES}
    mirrored |= {
        Path("docs"),
        Path("examples"),
        Path("benchmarks"),
        Path("types"),
        Path("neighbours"),
        Path("upstream"),
        Path("fuzz"),
        Path("huggingface"),
        Path("mistakes"),
        Path("neighbours"),
    }
    assert folders <= mirrored
