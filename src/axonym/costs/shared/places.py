"""Internal. The layer and the phase of an operation, from the name that JAX gives to it.

Jaxprs and compiled programs hold the same names, so both readers ask `Places`. It knows how JAX writes names; it must
not know operations.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...engine import find_choice
from .rows import OUTSIDE, Phase

# JAX puts these into names for its own functions, so they are no layers.
_OF_JAX = {
    "body",
    "checkpoint",
    "closed_call",
    "cond",
    "core_call",
    "custom_jvp_call",
    "custom_lin",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "eval_jaxpr",
    "pjit",
    "remat",
    "remat2",
    "rematted_computation",
    "scan",
    "shard_map",
    "while",
}
_BRANCH = re.compile(r"branch_\d+_fun")
_TRANSFORM = re.compile(r"^(\w+)\((.*)\)$")


class Place(NamedTuple):
    """The place of an operation in the model and in the step.

    Attributes:
        layer: the path of its layer, such as `blocks.attention.out`; empty outside of layers.
        phase: the phase of the step, such as `forward`.
    """

    layer: str
    phase: Phase


class Places:
    """The layers and phases of the operations of one program.

    Args:
        sources: the names of its operations.

    Attributes:
        has_gradient: whether some operation belongs to a gradient.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self.has_gradient = any("transpose(" in source for source in sources)

    def find(self, source: str) -> Place:
        """Return the layer and the phase of an operation; for merged operations, return the layer that they share."""
        return _find_shared(source, self.has_gradient)

    def list_choices(self, sources: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the implementations of attention among operations, each with its layers."""
        found: dict[str, dict[str, None]] = {}
        for source in sources:
            choice = find_choice(source)
            if choice is not None:
                found.setdefault(choice, {})[self.find(source).layer or OUTSIDE] = None
        return {choice: tuple(layers) for choice, layers in found.items()}


# Equal layers and mappings repeat names, and a name takes long to parse.
@functools.lru_cache(2**14)
def _find_shared(source: str, has_gradient: bool) -> Place:
    several = [find_place(one, has_gradient=has_gradient) for one in expand_merged(source)]
    levels = zip(*(place.layer.split(".") for place in several), strict=False)
    common = itertools.takewhile(lambda parts: len(set(parts)) == 1, levels)
    return Place(".".join(parts[0] for parts in common), several[-1].phase)


def find_place(source: str, *, has_gradient: bool) -> Place:
    """Return the layer and the phase of an operation.

    Args:
        source: its name in the program, such as `jit(step)/transpose(jvp(blocks))/while/body/mlp/up/dot_general`.
        has_gradient: whether the program has a gradient. If so, operations outside of it are `other`, such as
            operations of an optimiser; if not, they are `forward`.
    """
    names: list[str] = []
    phase: Phase = "forward"
    is_marked = False
    parts = _segment(source, "/")
    # The last part is the operation itself.
    for part in parts[:-1]:
        inner = part
        # Transformations wrap a name, such as `transpose(jvp(blocks))`.
        while match := _TRANSFORM.match(inner):
            transform, inner = match.groups()
            if transform == "jit":
                inner = "jit"
                break
            if transform == "jvp":
                is_marked = True
            elif transform == "transpose":
                phase, is_marked = "backward", True
        if part == "rematted_computation":
            phase = "recomputed"
        if part.startswith(("jit(_", "jit(kernel[")):
            # The following parts are inside of a private function of JAX, or of a kernel.
            break
        if _is_layer(inner):
            names += filter(None, inner.split("/"))
    if has_gradient and not is_marked:
        phase = "other"
    return Place(".".join(_drop_repeat(names)), phase)


def _drop_repeat(names: list[str]) -> list[str]:
    """Remove a repetition at the end: within a checkpoint, JAX repeats the scope around it."""
    for count in range(len(names) // 2, 0, -1):
        if names[-count:] == names[-2 * count : -count]:
            return names[:-count]
    return names


def _is_layer(name: str) -> bool:
    """Return whether a part of a name is a layer or a scope of the user."""
    if not name or name == "jit" or name in _OF_JAX or _BRANCH.fullmatch(name):
        return False
    # The others are expressions of einsum, functions and merged names.
    return not any(mark in name for mark in ("->", "<", "(", ":", ",")) and name[0] != "_"


def expand_merged(source: str) -> list[str]:
    """Return the names of all operations that the compiler merged into one; JAX writes them as `a/(b:c)/d`."""
    # A name may have several merged parts, which are expanded one after another.
    start = _find_merged(source)
    if start is None:
        return [source]
    end = _find_closing(source, start)
    found: list[str] = []
    for choice in _segment(source[start + 1 : end], ":"):
        found += expand_merged(source[:start] + choice + source[end + 1 :])
    return found


def _find_merged(source: str) -> int | None:
    """Return the position where the first merged part begins; None if there is none."""
    for match in re.finditer(r"(?:^|/)\(", source):
        start = match.end() - 1
        if len(_segment(source[start + 1 : _find_closing(source, start)], ":")) > 1:
            return start
    return None


def _find_closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if not depth:
            return i
    return len(text)


def _segment(text: str, mark: str) -> list[str]:
    """Return the parts of a text between marks that are not inside of parentheses."""
    found = [""]
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == mark and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def is_within(layer: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether the parts of a layer occur in a path, in order; the path may have other parts between them."""
    rest = iter(path)
    return all(part in rest for part in layer)


def find_layer(path: str, layers: Mapping[str, str]) -> str:
    """Return the layer that a parameter belongs to.

    Args:
        path: the path of the parameter in the arguments.
        layers: the layers of operations, by the parts that must occur in the path; the longest match counts. Without a
            match, the module that holds the parameter counts.
    """
    parts = path.split(".")
    best = ""
    for layer in layers:
        if is_within(layer.split("."), parts) and count_parts(layer) > count_parts(best):
            best = layer
    if best:
        return layers[best]
    if len(parts) > 1:
        return parts[-2]
    return ""


def count_parts(layer: str) -> int:
    """Return the number of parts of a path."""
    return len(list(filter(None, layer.split("."))))
