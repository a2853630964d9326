"""Hold files and functions to the sizes of CONTRIBUTING.md: a file has one subject, a function one job."""

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTION_LIMIT = 60
# folder: (lines from which a file is warned about, lines from which it fails)
FILE_LIMITS = {
    "src": (400, 600),
    "tests": (400, 800),
    "examples": (150, 600),
    "benchmarks": (400, 600),
    "tools": (400, 600),
}
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def span(node: ast.stmt) -> range:
    """Return the numbers of the lines that a statement takes."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        # A string that stands alone as a statement is documentation.
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(span(node))
            case _:
                pass
    return lines


def check(path: Path, soft: int, hard: int) -> tuple[list[str], list[str]]:
    """Return the warnings and the failures of one file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    where = path.relative_to(ROOT)
    length = len(text.splitlines())
    warnings = [f"{where}: {length} lines (aim: {soft})"] if soft < length <= hard else []
    failures = [f"{where}: {length} lines (limit: {hard})"] if length > hard else []
    lines = code_lines(text, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = len(lines.intersection(span(node)))
            if size > FUNCTION_LIMIT:
                place = f"{where}:{node.lineno}: {node.name}"
                failures.append(f"{place} has {size} code lines (limit: {FUNCTION_LIMIT})")
    return warnings, failures


def main() -> int:
    """Check every folder, print what is too long, and return the exit status."""
    files, failed = 0, False
    for folder, limits in FILE_LIMITS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            warnings, failures = check(path, *limits)
            files += 1
            for message in warnings:
                print(f"warning: {message}")
            for message in failures:
                print(f"error: {message}")
            failed |= bool(failures)
    print(f"{files} files measured")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
