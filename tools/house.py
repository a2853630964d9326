"""Count what "What was tried" of docs/design/house.md says: lines of code, comments, and the files on a call's way.

python tools/house.py
"""

import ast
import io
import os
import sys
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

SRC = Path(__file__).parents[1] / "src/axonym"
LIMIT = 600  # lines of a file
LONG = 14  # lines of a function that may need a comment
SPACE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def without_docstring(node: ast.Module | ast.ClassDef | Function) -> list[ast.stmt]:
    """Return the statements of a body, without its docstring."""
    return node.body[ast.get_docstring(node) is not None :]


def count_lines() -> Counter[str]:
    """Count lines of code, of signatures, imports and comments, and long functions without a comment."""
    found: Counter[str] = Counter()
    for path in SRC.rglob("*.py"):
        if "compat" in path.parts:
            continue
        text = path.read_text()
        tree, tokens = ast.parse(text), list(tokenize.generate_tokens(io.StringIO(text).readline))
        comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
        code = {line for token in tokens if token.type not in SPACE for line in range(token.start[0], token.end[0] + 1)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
                code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            if isinstance(node, ast.Import | ast.ImportFrom):
                found["imports"] += (node.end_lineno or 0) - node.lineno + 1
            if isinstance(node, Function):
                found["signatures"] += node.body[0].lineno - node.lineno
            if isinstance(node, Function) and (body := without_docstring(node)):
                lines = range(body[0].lineno, (node.end_lineno or 0) + 1)
                if len(lines) >= LONG and comments.isdisjoint(range(lines[0] - 1, lines[-1] + 1)):
                    found["long functions without comments"] += 1
                    found["of these, raise"] += any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        found["code"] += len(code)
        found["comments"] += len(comments)
    return found


def list_entered(call: Callable[[], object]) -> list[str]:
    """List the files of the library that a call enters."""
    files: set[str] = set()

    def look(frame: object, event: str, _: object) -> None:
        name = frame.f_code.co_filename  # type: ignore[attr-defined]
        if event == "call" and name.startswith(str(SRC)):
            files.add(name)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(files)


def count_packed(files: list[str]) -> int:
    """Return the number of files if each room were packed into as few as the limit allows, the longest ones first."""
    rooms: dict[Path, list[int]] = {}
    for name in sorted(files, key=lambda name: -len(Path(name).read_text().splitlines())):
        size, path = len(Path(name).read_text().splitlines()), Path(name)
        packed = rooms.setdefault(path if path.parent == SRC else path.parent, [])
        at = next((at for at, used in enumerate(packed) if used + size <= LIMIT), None)
        if at is None:
            packed.append(size)
        else:
            packed[at] += size
    return sum(map(len, rooms.values()))


def main() -> None:
    """Print the counts."""
    import jax

    import axonym as axn
    from axonym import nn

    for name, count in count_lines().items():
        print(f"{name}: {count}")
    key, axes = jax.random.key(0), axn.make_axes(batch=8, embed=32, mlp=64, pos=16, heads=4, head_dim=8)
    Batch, Embed, Mlp, Pos, Heads, Dim = axes
    layer, x = nn.Linear.init(Embed, Mlp, key=key), axn.ones((Batch, Embed))
    query = axn.ones((Batch, Pos, Heads, Dim))
    keys = query.rename({"pos": "pos.key"})

    def attend(q: axn.NamedArray, k: axn.NamedArray) -> axn.NamedArray:
        return nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, k, mask=nn.causal())

    # An eager call has made what a process makes once.
    layer(x), attend(query, keys)
    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "Linear": ("model", lambda: axn.named_jit(layer, {"batch": "data", "mlp": "model"}).lower(x)),
        "attention": ("context", lambda: axn.named_jit(attend, {"batch": "data", "pos": "context"}).lower(query, keys)),
    }
    for name, (mesh_axis, call) in calls.items():
        with axn.set_mesh(jax.make_mesh((2, 4), ("data", mesh_axis), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
            files = list_entered(call)
        print(f"files that {name} enters in named_jit: {len(files)}; packed: {count_packed(files)}")


if __name__ == "__main__":
    main()
