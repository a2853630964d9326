"""Find mistakes that raise no error: in a model, and in the indices of a program."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding

from . import parameters
from .array import NamedArray, is_named_array
from .axis import shown
from .core import payload_of
from .engine.audits import Report, checking
from .engine.operands import own_names
from .errors import ArgumentError, AxisSizeError, describe, message
from .kinds import Payload, Tree, has_type
from .layout.assignment import path_text
from .partitioning.trees import find_static_axes, is_optimiser_state
from .report.table import Printed

__all__ = ["Diagnosis", "Finding", "checks", "diagnose", "unreached"]


class _Checks(AbstractContextManager[None]):
    """A block in which programs report; entered again, it runs the programs that it has compiled."""

    def __init__(self) -> None:
        self._report = Report()
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        context = checking(self._report)
        context.__enter__()
        self._entered.append(context)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)
        found = self._report.taken()
        if error is not None:
            for problem in found:
                error.add_note(problem)
        elif found:
            raise AxisSizeError("\n".join(found))


def checks() -> AbstractContextManager[None]:
    """Make a block that checks the numbers that programs compute with: indices, ids and positions out of range.

    Under `jax.jit` they are moved into range, dropped, or give NaN, as in `jax.numpy`. Inside of the block, programs
    look at the indices of `x[...]`, `x.at[...]` (unless a mode says what to do), `take`, `slice`, `updated_slice` and
    references, the ids of embeddings, also negative ones, the classes of losses, and the length of a `KVCache`. Where
    the block ends, it waits for all programs, and raises an error that lists what they found.

    Programs are compiled anew for each block, and are slower; outside of it, nothing is added to them. To check
    several steps one by one, keep the block: `checked = axn.debug.checks()`, and `with checked:` around each.

    Raises:
        AxisSizeError: at the end of the block, if an index was out of range.

    Examples:
        >>> read = jax.jit(lambda x, i: x["pos", i])
        >>> with axn.debug.checks():
        ...     read(axn.zeros(axn.Axis("pos", 4)), 7).array.item()
        Traceback (most recent call last):
        axonym.errors.AxisSizeError: index: index 7 is out of range for pos=4
          array has: pos=4
    """
    return _Checks()


@dataclasses.dataclass(frozen=True)
class Finding:
    """A likely or possible mistake in a model.

    Attributes:
        kind: "reused array", "static array", "host array", "lost axis", "stale axis", "not finite", "mixed precision",
            "no gradient"; or, often intended, "two sizes", "integers".
        paths: where it is.
        text: what it is.
        hint: what to do about it.
        is_problem: whether it is hardly ever intended.
    """

    kind: str
    paths: tuple[str, ...]
    text: str
    hint: str
    is_problem: bool = True

    def __str__(self) -> str:
        return message(self.kind, self.text, *self.paths, hint=self.hint)


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis(Printed):
    """The findings in a model, which print as text, also in notebooks; true if there are problems.

    Attributes:
        findings: problems first.
    """

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are hardly ever intended."""
        return tuple(finding for finding in self.findings if finding.is_problem)

    def __bool__(self) -> bool:
        return bool(self.problems)

    def parts(self) -> Iterator[str]:
        """Yield the paragraphs."""
        yield from map(str, self.findings)
        if not self.findings:
            yield "nothing found"


def diagnose(
    model: Tree,
    loss_fn: Callable[..., Any] | None = None,
    *args: Any,
    strict: bool = False,
    **kwargs: Any,
) -> Diagnosis:
    """Look for common mistakes in a model, which may be abstract.

    - reused array: two places hold the same array; after an optimiser step, they differ;
    - static array: a static field holds an array, which is compiled into programs and never trained;
    - host array: a NumPy array instead of a parameter, which is transferred to a device at each call;
    - lost axis: an array has fewer dimensions than names, and is not in a state of optax;
    - stale axis: an array, not in a state of optax, does not have the size that its module declares for an axis;
    - not finite: NaN or infinity among the elements;
    - mixed precision: some arrays are 64-bit, and not all;
    - no gradient: with a loss, the arrays on which it does not depend, see `unreached`.

    Two findings are not problems: names with different sizes in different places, and integer arrays, which have no
    gradient.

    Args:
        model: a model, concrete or as `eqx.filter_eval_shape` returns it.
        loss_fn: a function of the model and `args` that returns a loss, or a tuple that begins with it.
        args: further arguments of `loss_fn`.
        strict: raise an error if there are problems.
        kwargs: keyword arguments of `loss_fn`.

    Returns:
        An object that prints as a report, has the findings as an attribute and is true if there are problems.

    Raises:
        ArgumentError: with `strict`, if there are problems.

    Examples:
        >>> Embed = axn.Axis("embed", 4)
        >>> norm = axn.nn.LayerNorm.init(Embed)
        >>> axn.debug.diagnose({"first": norm, "second": norm})
        reused array: two places hold the same array
          first.weight
          second.weight
          hint: ...
        <BLANKLINE>
        reused array: two places hold the same array
          first.bias
          second.bias
          hint: ...
    """
    checks: list[Callable[[Any], Iterator[Finding]]] = [
        _reused,
        _static,
        _on_host,
        _lost,
        _stale,
        _not_finite,
        _mixed,
        _sizes,
        _integers,
    ]
    findings: list[Finding] = []
    for check in checks:
        findings += check(model)
    if loss_fn is not None:
        paths = unreached(model, loss_fn, *args, **kwargs)
        text = "the loss does not depend on them, or gradients stop on the way"
        hint = "use them, make them constants behind jax.lax.stop_gradient, or leave them out of the model"
        if paths:
            findings.append(Finding("no gradient", paths, text, hint))
    diagnosis = Diagnosis(tuple(sorted(findings, key=lambda finding: not finding.is_problem)))
    if strict and diagnosis:
        facts = "\n".join(map(str, diagnosis.problems)).splitlines()
        count = len(diagnosis.problems)
        raise ArgumentError(
            message("diagnose", f"the model has {count} problem{'s'[: count > 1]}", *facts)
        )
    return diagnosis


def _leaves(model: Tree) -> list[tuple[str, tuple[str, ...], Payload]]:
    """List path, names and payload of each array."""
    found: list[tuple[str, tuple[str, ...], Payload]] = []
    for keys, leaf in jax.tree.leaves_with_path(model, is_leaf=is_named_array):
        array = payload_of(leaf)
        if has_type(array):
            found.append((path_text(keys), own_names(leaf), array))
    return found


def _paths(model: Tree, is_meant: Callable[[Payload], bool]) -> tuple[str, ...]:
    """Return the paths of the arrays that are meant."""
    return tuple(path for path, _, array in _leaves(model) if is_meant(array))


def _is_floating(array: Payload) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _modules(tree: Tree, path: str = "") -> Iterator[tuple[str, eqx.Module]]:
    """Yield the modules of a tree with their paths."""
    if isinstance(tree, eqx.Module):
        yield path, tree
    children = jax.tree.leaves_with_path(tree, is_leaf=lambda x: x is not tree)
    for keys, child in children:
        if keys and not isinstance(child, NamedArray):
            key = path_text(keys)
            yield from _modules(child, _below(path, key))


def _below(path: str, key: str) -> str:
    if path:
        return f"{path}.{key}"
    return key


def _without_optimisers(tree: Tree) -> Tree:
    """Remove the states of optimisers."""

    def kept(node: Tree) -> Tree:
        if is_optimiser_state(node):
            return None
        return node

    return jax.tree.map(
        kept, tree, is_leaf=lambda node: is_named_array(node) or is_optimiser_state(node)
    )


def _reused(model: Tree) -> Iterator[Finding]:
    places: dict[int, list[str]] = {}
    for path, _, array in _leaves(model):
        if isinstance(array, jax.Array | np.ndarray):
            places.setdefault(id(array), []).append(path)
    for paths in places.values():
        if len(paths) > 1:
            hint = "to tie them, hold the array in one place and pass it to the other at the call; otherwise copy it"
            yield Finding(
                "reused array",
                tuple(paths),
                f"{_count(len(paths))} places hold the same array",
                hint,
            )


def _count(number: int) -> str:
    return {2: "two"}.get(number, str(number))


def _static(model: Tree) -> Iterator[Finding]:
    paths: list[str] = []
    for path, module in _modules(model):
        for field in dataclasses.fields(module):
            held = jax.tree.leaves(getattr(module, field.name, None))
            if field.metadata.get("static") and any(map(_is_array, held)):
                paths.append(_below(path, field.name))
    if paths:
        hint = (
            "make the field non-static; where it is a constant, use it behind jax.lax.stop_gradient"
        )
        yield Finding(
            "static array", tuple(paths), "static fields hold arrays, which are never trained", hint
        )


def _is_array(value: Payload) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _on_host(model: Tree) -> Iterator[Finding]:
    paths = _paths(model, lambda array: isinstance(array, np.ndarray | np.generic))
    if paths:
        hint = (
            "convert them to JAX arrays: jnp.asarray(array), axn.named(jnp.asarray(array), names)"
        )
        yield Finding(
            "host array", paths, "NumPy arrays, which are copied to a device at each call", hint
        )


def _lost(model: Tree) -> Iterator[Finding]:
    for path, names, array in _leaves(_without_optimisers(model)):
        if len(array.shape) < len(names):
            hint = "a raw jax.vmap or an index removed a dimension; use axn.vmap or x[name, i]"
            yield Finding("lost axis", (path,), describe(names, array.shape), hint)


def _stale(model: Tree) -> Iterator[Finding]:
    for path, module in _modules(_without_optimisers(model)):
        declared = {axis.name: axis for axes in find_static_axes(module).values() for axis in axes}
        for field in dataclasses.fields(module):
            x = getattr(module, field.name, None)
            if (
                not isinstance(x, NamedArray)
                or not has_type(x.array)
                or len(x.array.shape) < len(x.names)
            ):
                continue
            sizes = zip(x.names, x.array.shape[len(x.array.shape) - len(x.names) :], strict=True)
            for name, size in sizes:
                axis = declared.get(name) or declared.get(name.removesuffix(".out"))
                if axis is not None and axis.size != size:
                    text = f"the module declares {shown(axis)}, but the array has {name}={size}"
                    hint = "resize both: axn.tree.resize_axis(model, name, size)"
                    yield Finding("stale axis", (_below(path, field.name),), text, hint)


def _not_finite(model: Tree) -> Iterator[Finding]:
    found: list[tuple[str, Payload]] = []
    for path, _, array in _leaves(model):
        if _is_floating(array) and _is_array(array) and not isinstance(array, Tracer):
            found.append((path, array))
    # A program runs on the devices of its arrays, which must be those of the current mesh, if there is one; and while a
    # function is traced, a program becomes part of it. Another thread has neither a mesh nor a trace.
    programs: dict[object, dict[int, jax.Array]] = {}
    for i, (_, array) in enumerate(found):
        programs.setdefault(_devices(array), {})[i] = array
    with ThreadPoolExecutor(1) as thread:
        finite = [thread.submit(jax.jit(_all_finite), arrays) for arrays in programs.values()]
    flags: dict[int, jax.Array] = {}
    for each in finite:
        flags |= each.result()
    paths = tuple(path for i, (path, _) in enumerate(found) if not flags[i])
    if paths:
        yield Finding(
            "not finite",
            paths,
            "NaN or infinity among the elements",
            "check how they are made or updated",
        )


def _all_finite(arrays: Mapping[int, jax.Array]) -> dict[int, jax.Array]:
    return {i: jnp.isfinite(array).all() for i, array in arrays.items()}


def _devices(array: jax.Array | np.ndarray) -> object:
    """Return what the arrays of one program must share: their mesh, which orders devices, or the devices."""
    if isinstance(array, np.ndarray):
        return None
    sharding = array.sharding
    if isinstance(sharding, NamedSharding):
        return sharding.mesh
    return frozenset(sharding.device_set)


def _mixed(model: Tree) -> Iterator[Finding]:
    wide = _paths(model, lambda array: array.dtype in (np.float64, np.complex128))
    if 0 < len(wide) < len(_paths(model, _is_floating)):
        hint = "give a dtype where they are made, or cast the model"
        yield Finding(
            "mixed precision", wide, "arrays of 64 bits in a model that has narrower ones", hint
        )


def _sizes(model: Tree) -> Iterator[Finding]:
    places: dict[str, dict[int, str]] = {}
    for path, names, array in _leaves(_without_optimisers(model)):
        for name, size in zip(reversed(names), reversed(array.shape), strict=False):
            places.setdefault(name, {}).setdefault(size, path)
    for name, sizes in places.items():
        if len(sizes) > 1:
            text = f"axis {name!r} has {_count(len(sizes))} sizes"
            paths = tuple(f"{path}: {name}={size}" for size, path in sizes.items())
            yield Finding(
                "two sizes",
                paths,
                text,
                "if they mean different things, give them different names",
                False,
            )


def _integers(model: Tree) -> Iterator[Finding]:
    def is_integer(array: Payload) -> bool:
        return array.dtype == bool or bool(jnp.issubdtype(array.dtype, jnp.integer))

    paths = _paths(model, is_integer)
    if paths:
        hint = "differentiate by eqx.filter_grad, and give the optimiser eqx.filter(model, eqx.is_inexact_array)"
        yield Finding("integers", paths, "arrays that have no gradient", hint, False)


def unreached(
    model: Tree, loss_fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[str, ...]:
    """List the paths of floating arrays that no gradient of a loss reaches.

    Nothing is computed: the gradient is traced, and zeros are followed through its program, also through loops and
    branches. So the result depends on how the loss is computed, not on values: a weight behind one that starts at zero
    is reached.

    Args:
        model: a model, which may be abstract.
        loss_fn: a function of the model and `args` that returns a loss, or a tuple that begins with it.
        args: further arguments of `loss_fn`.
        kwargs: keyword arguments of `loss_fn`.
    """
    leaves, structure = jax.tree.flatten((model, args, kwargs))
    paths = [parameter.path for parameter in parameters.walk(model)]
    count = len(jax.tree.leaves(model))
    chosen: list[int] = []
    others: list[int] = []
    for i, leaf in enumerate(leaves):
        if has_type(leaf) and i < count and _is_floating(leaf):
            chosen.append(i)
        elif has_type(leaf):
            others.append(i)

    def loss(floating: Tree, rest: Tree) -> Any:
        filled = list(leaves)
        for i, leaf in (*zip(chosen, floating, strict=True), *zip(others, rest, strict=True)):
            filled[i] = leaf
        model, args, kwargs = jax.tree.unflatten(structure, filled)
        result = loss_fn(model, *args, **kwargs)
        if isinstance(result, tuple):
            result = result[0]
        if isinstance(result, NamedArray):
            return result.scalar()
        return result

    traced = jax.make_jaxpr(jax.grad(loss))(
        [leaves[i] for i in chosen], [leaves[i] for i in others]
    )
    zeros = _zeros(traced.jaxpr, [False] * len(traced.jaxpr.invars), traced.consts)
    return tuple(path for path, zero in zip(paths, zeros, strict=True) if zero)


# Operations that give zero if all floating operands are zero; indices and conditions do not matter.
_LINEAR = re.compile(
    "add|add_any|all_gather|all_to_all|broadcast_in_dim|concatenate|convert_element_type|copy|cumsum|device_put|"
    "dynamic_slice|dynamic_update_slice|expand_dims|gather|imag|neg|optimization_barrier|pad|pcast|ppermute|psum|"
    "psum_invariant|pvary|real|reduce_precision|reduce_scatter|reduce_sum|reshape|reshard|rev|scatter|scatter-add|"
    "select_n|sharding_constraint|slice|split|squeeze|stop_gradient|sub|transpose"
)
# Operations that give zero if one of their operands is zero.
_PRODUCTS = {"mul", "dot_general", "conv_general_dilated", "ragged_dot_general"}


def _zeros(jaxpr: Any, known: Sequence[bool], constants: Sequence[Payload] = ()) -> list[bool]:
    """Return which results of a program are zero, given which of its inputs are."""
    zero = dict(zip(jaxpr.invars, known, strict=True))
    for var, value in zip(jaxpr.constvars, constants, strict=False):
        zero[var] = not jnp.shape(value) and _is_inexact(var) and not np.any(value)

    def is_zero(atom: Any) -> bool:
        if hasattr(atom, "val"):
            return not np.any(atom.val)
        return bool(zero.get(atom, False))

    for eqn in jaxpr.eqns:
        results = _results(eqn, list(map(is_zero, eqn.invars)))
        zero |= dict(zip(eqn.outvars, results, strict=True))
    return list(map(is_zero, jaxpr.outvars))


def _results(eqn: Any, known: list[bool]) -> list[bool]:
    """Return which results of one operation are zero."""
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.outvars)
    if name == "scan":
        return _scanned(eqn, known)
    if name == "cond":
        branches = [_inner(branch, known[1:]) for branch in params["branches"]]
        return list(map(all, zip(*branches, strict=True)))
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    program = getattr(inner, "jaxpr", inner)
    if program is not None and len(program.invars) == len(known) and len(program.outvars) == count:
        return _inner(inner, known)
    if name in _PRODUCTS:
        return [any(known)] * count
    floats = [zero for atom, zero in zip(eqn.invars, known, strict=True) if _is_inexact(atom)]
    return [_LINEAR.fullmatch(name) is not None and bool(floats) and all(floats)] * count


def _is_inexact(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def _inner(program: Any, known: Sequence[bool]) -> list[bool]:
    """Follow zeros through an inner program, which may have constants."""
    return _zeros(getattr(program, "jaxpr", program), known, getattr(program, "consts", ()))


def _scanned(eqn: Any, known: list[bool]) -> list[bool]:
    """Follow zeros through a loop: a carry is zero if it starts as zero and stays so."""
    program = eqn.params["jaxpr"]
    inner = getattr(program, "jaxpr", program)
    # Stacked arrays have one dimension less inside the loop; constants come first, then carries.
    count = _equal_rank(eqn.outvars, inner.outvars)
    last = _equal_rank(eqn.invars, inner.invars)
    first = last - count
    carried = known[first:last]
    while True:
        results = _inner(program, [*known[:first], *carried, *known[last:]])
        kept = [before and after for before, after in zip(carried, results, strict=False)]
        if kept == carried:
            return [*kept, *results[count:]]
        carried = kept


def _equal_rank(outside: Sequence[Payload], inside: Sequence[Payload]) -> int:
    pairs = zip(outside, inside, strict=True)
    return sum(len(one.aval.shape) == len(other.aval.shape) for one, other in pairs)
