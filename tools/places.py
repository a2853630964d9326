"""Write `src/axonym/base/places.py`, which says where public names are: `python tools/places.py [--check]`.

Packages that load their names at first use import all of them where only type checkers look. The table has the same
for Python.
"""

import ast
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "axonym"
TABLE = SRC / "base/places.py"
COMMAND = "python tools/places.py"
PACKAGES = (SRC, SRC / "nn", SRC / "partitioning", SRC / "random")
# Run by itself, and a guest.
APART = {"__init__", "__main__", "compat"}
COLUMNS = 100


def imports(package: Path) -> list[ast.ImportFrom]:
    """Return the imports of a package that are for type checkers, and so for users."""
    found: list[ast.ImportFrom] = []
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "not _typing.TYPE_CHECKING":
            found += [part for part in node.orelse if isinstance(part, ast.ImportFrom)]
    return found


def source_of(package: Path, node: ast.ImportFrom) -> Path:
    """Return the file that an import takes from, or the folder."""
    path = [package, *package.parents][node.level - 1].joinpath(*(node.module or "").split("."))
    return path if path.is_dir() else path.with_suffix(".py")


def dotted(path: Path) -> str:
    """Return the name of a module from its file or folder."""
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts)


def listed(file: Path) -> list[str]:
    """Return the literal `__all__` of a module."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{file}: no __all__, which a star would import")


def names(package: Path) -> dict[str, list[str]]:
    """Return the public names of a package by module; what a package has, itself included, are modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in imports(package):
        source = source_of(package, node)
        for alias in node.names:
            name = alias.asname or alias.name
            if name == "*":
                found[dotted(source)] += listed(source)
            elif not name.startswith("_"):
                found[dotted(source)].append(name)
    return {module: sorted(found[module]) for module in sorted(found)}


def below(package: Path) -> list[str]:
    """Return the modules of a package that users reach by their path, as `axonym.nn.initializer`."""
    found = {path.stem for path in package.glob("*.py")}
    found |= {path.parent.name for path in package.glob("*/__init__.py")}
    return sorted(found - APART)


def entry(key: str, words: list[str], indent: str) -> list[str]:
    """Spell a key and a list of words, one string, on as many lines as they need, as the formatter does."""
    line = f'{indent}"{key}": "{" ".join(words)}",'
    if len(line) <= COLUMNS:
        return [line]
    width = COLUMNS - len(indent) - len('    " "')
    *first, last = textwrap.wrap(" ".join(words), width, break_on_hyphens=False)
    parts = [f'{indent}    "{part} "' for part in first]
    return [f'{indent}"{key}": (', *parts, f'{indent}    "{last}"', f"{indent}),"]


def table() -> str:
    """Return the text of the file."""
    lines = [f'"""Where public names are, by package and module; `{COMMAND}` writes this file."""', ""]
    lines.append("NAMES: dict[str, dict[str, str]] = {")
    for package in PACKAGES:
        lines.append(f'    "{dotted(package)}": {{')
        for module, words in names(package).items():
            lines += entry(module, words, " " * 8)
        lines.append("    },")
    lines += ["}", "# The modules of a package, for whoever writes the whole path.", "BELOW: dict[str, str] = {"]
    for package in PACKAGES:
        lines += entry(dotted(package), below(package), " " * 4)
    return "\n".join((*lines, "}", ""))


def main() -> int:
    """Write the table, or tell whether it is as it should be; return the exit status."""
    text = table()
    if "--check" not in sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")
        print(f"{TABLE.relative_to(ROOT)}: {len(text.splitlines())} lines")
        return 0
    if TABLE.read_text(encoding="utf-8") != text:
        print(f"Public names are in other places than the table says: `{COMMAND}` writes it.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
