"""Write down the public interface, `tests/api.txt`, or compare it: `python tools/api_snapshot.py [--check]`.

The file has one line for each public name: its full signature, read from the sources without running them. A change of
the interface is then a line that a reader of the change sees.
"""

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
SNAPSHOT = ROOT / "tests" / "api.txt"
COMMAND = "python tools/api_snapshot.py"
# It follows another library, whose names a table in its tests has.
INTERNAL = {"compat"}
# Public in the sense of the operators: what Python calls by itself is part of the interface.
OPERATORS = {"__init__", "__call__", "__getitem__", "__setitem__", "__iter__", "__len__", "__bool__", "__contains__"}


def parameter(each: griffe.Parameter) -> str:
    """Spell one parameter as Python does."""
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
    annotation = f": {each.annotation}" if each.annotation is not None else ""
    default = f" = {each.default}" if each.default is not None and not stars else ""
    return f"{stars}{each.name}{annotation}{default}"


def signature(function: griffe.Function) -> str:
    """Spell the parameters and the result of a function."""
    parts: list[str] = []
    kinds = [each.kind for each in function.parameters]
    for i, each in enumerate(function.parameters):
        keyword_only = each.kind is griffe.ParameterKind.keyword_only
        if keyword_only and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(parameter(each))
        last_positional_only = each.kind is griffe.ParameterKind.positional_only and each.kind not in kinds[i + 1 :]
        if last_positional_only:
            parts.append("/")
    result = f" -> {function.returns}" if function.returns is not None else ""
    return f"({', '.join(parts)}){result}"


def lines_of(name: str, found: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the line of an object, and those of a class's members."""
    if found.is_function:
        target = found.final_target if isinstance(found, griffe.Alias) else found
        assert isinstance(target, griffe.Function)
        yield f"{name}{signature(target)}"
    elif found.is_class:
        bases = ", ".join(str(base) for base in found.bases)
        yield f"class {name}({bases})"
        for own, member in sorted(found.members.items()):
            if is_interface(own):
                yield from lines_of(f"{name}.{own}", member)
    elif not found.is_module:
        annotation = getattr(found, "annotation", None)
        value = getattr(found, "value", None)
        yield f"{name}: {annotation if annotation is not None else value}"


def is_interface(name: str) -> bool:
    """Tell whether a member of a class is what users write."""
    return not name.startswith("_") or name in OPERATORS


def modules(package: griffe.Module) -> dict[str, griffe.Module]:
    """Return a package and the public modules in it by path, the shortest first; `axonym.linalg` is an alias of one."""
    found, inner = {package.path: package}, {package.path: package}
    while inner:
        inner = {
            f"{path}.{name}": module
            for path, outer in inner.items()
            if outer.is_init_module
            for name, member in sorted(outer.members.items())
            if not name.startswith("_") and name not in INTERNAL
            for module in [as_module(member)]
            if module is not None
        }
        found |= {path: module for path, module in inner.items() if module not in found.values()}
    return found


def as_module(member: griffe.Object | griffe.Alias) -> griffe.Module | None:
    """Return the module of the package that a member is or stands for."""
    try:
        target = member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:
        return None
    return target if isinstance(target, griffe.Module) else None


def listed(module: griffe.Module) -> list[str]:
    """Return the names that a module exports: its list, or what a package without one gathers.

    A module without a list is for the package itself.
    """
    if module.exports is not None:
        return [str(name) for name in module.exports]
    if not module.is_init_module:
        return []
    return [name for name, member in module.members.items() if member.is_alias and not name.startswith("_")]


def interface() -> list[str]:
    """Return a line for each name that a public module lists, under the shortest path where it is found."""
    package = griffe.load("axonym", search_paths=[str(ROOT / "src")], resolve_aliases=True, resolve_external=False)
    assert isinstance(package, griffe.Module)
    lines: list[str] = []
    seen: set[str] = set()
    for path, module in modules(package).items():
        for name in listed(module):
            member = module.members.get(name)
            if member is not None and definition(member) not in seen:
                seen.add(definition(member))
                lines += spelled(f"{path}.{name}", member)
    return sorted(lines)


def definition(member: griffe.Object | griffe.Alias) -> str:
    """Return the path where an object is defined; where that is in another package, its path here."""
    try:
        return member.canonical_path
    except griffe.AliasResolutionError:
        return member.path


def spelled(name: str, member: griffe.Object | griffe.Alias) -> list[str]:
    """Return the lines of a name; a name from another package is just a name."""
    try:
        return [" ".join(line.split()) for line in lines_of(name, member)]
    except griffe.AliasResolutionError:
        return [name]


def main() -> int:
    """Write the snapshot, or print how it differs; return the exit status."""
    new = [f"{line}\n" for line in interface()]
    if "--check" not in sys.argv[1:]:
        SNAPSHOT.write_text("".join(new), encoding="utf-8")
        print(f"{SNAPSHOT.relative_to(ROOT)}: {len(new)} lines")
        return 0
    old = SNAPSHOT.read_text(encoding="utf-8").splitlines(keepends=True)
    difference = list(difflib.unified_diff(old, new, "the interface as written down", "the interface", n=0))
    if difference:
        sys.stdout.writelines(difference)
        print(f"The public interface changed. Where that is meant, `{COMMAND}` writes it down.")
    return int(bool(difference))


if __name__ == "__main__":
    sys.exit(main())
