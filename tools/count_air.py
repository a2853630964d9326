"""Count how dense the code is: `python tools/count_air.py [--max conditionals=12 ...] [--files N] [FOLDER ...]`.

Per 1000 lines of code: conditional expressions, comprehensions, lines of more than 100 columns, comments and `Any`.
With `--max`, a total above a limit is a failure.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

from check_lengths import code_lines

ROOT = Path(__file__).parent.parent
COLUMNS = 100
KINDS = ("conditionals", "comprehensions", "long lines", "comments", "Any")
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def counts(text: str) -> Counter[str]:
    """Count one file; `code` is its number of lines of code."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    code = code_lines(text, tree)
    lines = text.splitlines()
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    return Counter(
        {
            "code": len(code),
            "conditionals": sum(isinstance(node, ast.IfExp) for node in nodes),
            "comprehensions": sum(isinstance(node, COMPREHENSIONS) for node in nodes),
            "long lines": sum(len(lines[number - 1]) > COLUMNS for number in code),
            "comments": sum(token.type == tokenize.COMMENT for token in tokens),
            "Any": sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens),
        }
    )


def density(found: Counter[str], kind: str) -> float:
    """Return how many there are per 1000 lines of code."""
    return 1000 * found[kind] / max(found["code"], 1)


def row(name: str, found: Counter[str]) -> str:
    """Return a line of the table."""
    return f"{name:<48}{found['code']:>7}" + "".join(f"{density(found, kind):>15.1f}" for kind in KINDS)


def limit(text: str) -> tuple[str, float]:
    """Read `KIND=NUMBER`."""
    kind, _, number = text.partition("=")
    if kind not in KINDS or not re.fullmatch(r"\d+(\.\d+)?", number):
        raise argparse.ArgumentTypeError(f"expected KIND=NUMBER, with one of {', '.join(KINDS)}; got {text!r}")
    return kind, float(number)


def main() -> int:
    """Print the densest files and the total, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=["src"], help="what to count (default: src)")
    parser.add_argument("--max", nargs="+", default=[], type=limit, metavar="KIND=NUMBER", help="limits of the total")
    parser.add_argument("--files", type=int, default=20, help="how many files to list (default: 20)")
    options = parser.parse_args()

    paths = [path for folder in options.folders for path in sorted((ROOT / folder).rglob("*.py"))]
    by_file = {str(path.relative_to(ROOT)): counts(path.read_text(encoding="utf-8")) for path in paths}
    total = sum(by_file.values(), Counter[str]())
    densest = sorted(by_file, key=lambda name: by_file[name]["conditionals"] + by_file[name]["comprehensions"])

    print(f"{'per 1000 lines of code':<48}{'code':>7}" + "".join(f"{kind:>15}" for kind in KINDS))
    for name in densest[::-1][: options.files]:
        print(row(name, by_file[name]))
    print(row(f"all {len(paths)} files", total))

    failures = [(kind, most) for kind, most in options.max if density(total, kind) > most]
    for kind, most in failures:
        print(f"error: {density(total, kind):.1f} {kind} per 1000 lines of code (limit: {most:g})")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
