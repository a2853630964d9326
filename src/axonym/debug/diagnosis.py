"""Find mistakes in a model, and in the indices of a program, that raise no error."""

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

from .. import parameters
from ..array import NamedArray, is_named_array
from ..axis import shown
from ..base.kinds import Payload, Tree, has_type
from ..engine.audits import Report, checking
from ..engine.core import payload_of
from ..engine.operands import own_names
from ..errors import ArgumentError, AxisSizeError, describe, message
from ..layout.assignment import path_text
from ..partitioning.trees import find_static_axes, is_optimiser_state
from ..report.table import Printed

__all__ = ["Diagnosis", "Finding", "checks", "diagnose", "unreached"]


class _Checks(AbstractContextManager[None]):
    """A block in which programs report wrong indices; if it is entered again, it reuses its compiled programs."""

    # One report for all entries: programs hold it, and JAX compiles a program again for another one.

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
        found = self._report.take()
        # An error of the block itself comes first: an index out of range may be its cause.
        if error is not None:
            for problem in found:
                error.add_note(problem)
        elif found:
            raise AxisSizeError("\n".join(found))


def checks() -> AbstractContextManager[None]:
    """Make a block in which programs report indices, ids and positions that are out of range.

    Under `jax.jit`, such indices are clamped, dropped, or give NaN, as in `jax.numpy`. Inside of the block, programs
    check the indices of `x[...]`, `x.at[...]` (unless a mode says what to do), `take`, `slice`, `updated_slice` and
    references, the ids of embeddings (also negative ones), the classes of losses, and the length of a `KVCache`. At its
    end, the block waits for all programs, and raises an error that lists their findings.

    Programs are compiled anew for each block, and are slower; programs outside of it do not change. To check several
    steps one by one, keep the block: `checked = axn.debug.checks()`, and `with checked:` around each.

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
        is_problem: whether it is almost never intended.

    Examples:
        >>> finding = axn.debug.diagnose({"ids": axn.arange(axn.Axis("pos", 2))}).findings[0]
        >>> finding.kind, finding.paths, finding.is_problem
        ('integers', ('ids',), False)
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

    Examples:
        >>> diagnosis = axn.debug.diagnose({"ids": axn.arange(axn.Axis("pos", 2))})
        >>> len(diagnosis.findings), bool(diagnosis)
        (1, False)
    """

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are almost never intended."""
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
    - static array: a static field holds an array, so it is compiled into programs and never trained;
    - host array: a NumPy array instead of a parameter, which is transferred to a device at each call;
    - lost axis: an array outside of states of optax has fewer dimensions than names;
    - stale axis: along some axis, an array outside of states of optax has another size than its module declares;
    - not finite: NaN or infinity among the elements;
    - mixed precision: some arrays are 64-bit, but not all;
    - no gradient: if a loss is given, the arrays on which it does not depend, see `unreached`.

    Two findings are not problems: names with different sizes in different places, and integer arrays, which have no
    gradient.

    Args:
        model: a model, concrete or as `eqx.filter_eval_shape` returns it.
        loss_fn: a function of the model and `args` that returns a loss, or a tuple that begins with it.
        args: further arguments of `loss_fn`.
        strict: raise an error if there are problems.
        kwargs: keyword arguments of `loss_fn`.

    Returns:
        An object with the findings as an attribute, which prints as a report and is true if there are problems.

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
    findings = [finding for find in _FINDERS for finding in find(model)]
    if loss_fn is not None:
        paths = unreached(model, loss_fn, *args, **kwargs)
        text = "the loss does not depend on them, or gradients stop on the way"
        hint = "use them, make them constants behind jax.lax.stop_gradient, or leave them out of the model"
        if paths:
            findings.append(Finding("no gradient", paths, text, hint))
    diagnosis = Diagnosis(tuple(sorted(findings, key=lambda finding: not finding.is_problem)))
    # Lines of all problems are facts of one error, so that a test that fails shows them.
    if strict and diagnosis:
        facts = "\n".join(map(str, diagnosis.problems)).splitlines()
        count = len(diagnosis.problems)
        raise ArgumentError(
            message("diagnose", f"the model has {count} problem{'s'[: count > 1]}", *facts)
        )
    return diagnosis


def _list_arrays(model: Tree) -> list[tuple[str, tuple[str, ...], Payload]]:
    """List path, names and payload of each array."""
    return [
        (path_text(keys), own_names(leaf), payload_of(leaf))
        for keys, leaf in jax.tree.leaves_with_path(model, is_leaf=is_named_array)
        if has_type(payload_of(leaf))
    ]


def _paths(model: Tree, predicate: Callable[[Payload], bool]) -> tuple[str, ...]:
    """Return the paths of the arrays for which the predicate is true."""
    return tuple(path for path, _, array in _list_arrays(model) if predicate(array))


def _is_floating(array: Payload) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _walk_modules(tree: Tree, path: str = "") -> Iterator[tuple[str, eqx.Module]]:
    """Yield the modules of a tree with their paths."""
    if isinstance(tree, eqx.Module):
        yield path, tree
    # One level at a time, since JAX lists leaves but no inner nodes. A leaf is its own child, with no keys.
    children = jax.tree.leaves_with_path(tree, is_leaf=lambda x: x is not tree)
    for keys, child in children:
        if keys and not isinstance(child, NamedArray):
            yield from _walk_modules(child, _join(path, path_text(keys)))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _remove_optimisers(tree: Tree) -> Tree:
    """Remove the states of optimisers, which may store statistics along an axis or a part of it."""
    return jax.tree.map(
        lambda node: None if is_optimiser_state(node) else node,
        tree,
        is_leaf=lambda node: is_named_array(node) or is_optimiser_state(node),
    )


def _find_reused(model: Tree) -> Iterator[Finding]:
    # Identity counts: equal arrays, such as two biases of zeros, are no mistake.
    places: dict[int, list[str]] = {}
    for path, _, array in _list_arrays(model):
        if _is_array(array):
            places.setdefault(id(array), []).append(path)
    for paths in places.values():
        if len(paths) > 1:
            hint = "to tie them, hold the array in one place and pass it to the other at the call; otherwise copy it"
            text = f"{_spell(len(paths))} places hold the same array"
            yield Finding("reused array", tuple(paths), text, hint)


def _spell(number: int) -> str:
    return {2: "two"}.get(number, str(number))


def _find_static(model: Tree) -> Iterator[Finding]:
    # Equinox warns only where such a module is made, which may be in another program.
    paths = tuple(
        _join(path, field.name)
        for path, module in _walk_modules(model)
        for field in dataclasses.fields(module)
        if field.metadata.get("static")
        and any(map(_is_array, jax.tree.leaves(getattr(module, field.name, None))))
    )
    if paths:
        text = "static fields hold arrays, which are never trained"
        hint = (
            "make the field non-static; where it is a constant, use it behind jax.lax.stop_gradient"
        )
        yield Finding("static array", paths, text, hint)


def _is_array(value: Payload) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _find_on_host(model: Tree) -> Iterator[Finding]:
    paths = _paths(model, lambda array: isinstance(array, np.ndarray | np.generic))
    if paths:
        text = "NumPy arrays, which are copied to a device at each call"
        hint = (
            "convert them to JAX arrays: jnp.asarray(array), axn.named(jnp.asarray(array), names)"
        )
        yield Finding("host array", paths, text, hint)


def _find_lost(model: Tree) -> Iterator[Finding]:
    for path, names, array in _list_arrays(_remove_optimisers(model)):
        if len(array.shape) < len(names):
            hint = "a raw jax.vmap or an index removed a dimension; use axn.vmap or x[name, i]"
            yield Finding("lost axis", (path,), describe(names, array.shape), hint)


def _find_stale(model: Tree) -> Iterator[Finding]:
    for path, module in _walk_modules(_remove_optimisers(model)):
        declared = {axis.name: axis for axes in find_static_axes(module).values() for axis in axes}
        for field in dataclasses.fields(module):
            x = getattr(module, field.name, None)
            if not isinstance(x, NamedArray) or not has_type(x.array):
                continue
            if len(x.array.shape) < len(x.names):  # `_find_lost` reports it
                continue
            sizes = zip(x.names, x.array.shape[len(x.array.shape) - len(x.names) :], strict=True)
            for name, size in sizes:
                # A layer whose input and output are one axis has its output as "<name>.out", and declares it once.
                axis = declared.get(name) or declared.get(name.removesuffix(".out"))
                if axis is not None and axis.size != size:
                    text = f"the module declares {shown(axis)}, but the array has {name}={size}"
                    hint = "resize both: axn.tree.resize_axis(model, name, size)"
                    yield Finding("stale axis", (_join(path, field.name),), text, hint)


def _find_not_finite(model: Tree) -> Iterator[Finding]:
    found = [
        (path, array)
        for path, _, array in _list_arrays(model)
        if _is_floating(array) and _is_array(array) and not isinstance(array, Tracer)
    ]
    # A program runs on the devices of its arrays, which must be those of the current mesh, if there is one; and while a
    # function is traced, a program becomes part of it. Another thread has neither a mesh nor a trace.
    programs: dict[object, dict[int, jax.Array]] = {}
    for i, (_, array) in enumerate(found):
        programs.setdefault(_find_devices(array), {})[i] = array
    with ThreadPoolExecutor(1) as thread:
        finite = [thread.submit(jax.jit(_all_finite), arrays) for arrays in programs.values()]
    flags: dict[int, jax.Array] = {}
    for each in finite:
        flags |= each.result()
    paths = tuple(path for i, (path, _) in enumerate(found) if not flags[i])
    if paths:
        text, hint = "NaN or infinity among the elements", "check how they are made or updated"
        yield Finding("not finite", paths, text, hint)


def _all_finite(arrays: Mapping[int, jax.Array]) -> dict[int, jax.Array]:
    return {i: jnp.isfinite(array).all() for i, array in arrays.items()}


def _find_devices(array: jax.Array | np.ndarray) -> object:
    """Return the mesh of an array, or else its set of devices: the arrays of one program must share it."""
    if isinstance(array, np.ndarray):
        return None
    sharding = array.sharding
    if isinstance(sharding, NamedSharding):
        return sharding.mesh
    return frozenset(sharding.device_set)


def _find_mixed(model: Tree) -> Iterator[Finding]:
    # All arrays in 64 bits are a choice. If only some are, they widen other arrays, one operation after another.
    wide = _paths(model, lambda array: array.dtype in (np.float64, np.complex128))
    if 0 < len(wide) < len(_paths(model, _is_floating)):
        text = "arrays of 64 bits in a model that has narrower ones"
        hint = "give a dtype where they are made, or cast the model"
        yield Finding("mixed precision", wide, text, hint)


def _find_sizes(model: Tree) -> Iterator[Finding]:
    places: dict[str, dict[int, str]] = {}
    for path, names, array in _list_arrays(_remove_optimisers(model)):
        # Names belong to the trailing dimensions, and an array that lost one has fewer of them.
        for name, size in zip(reversed(names), reversed(array.shape), strict=False):
            places.setdefault(name, {}).setdefault(size, path)
    for name, sizes in places.items():
        if len(sizes) > 1:
            text = f"axis {name!r} has {_spell(len(sizes))} sizes"
            paths = tuple(f"{path}: {name}={size}" for size, path in sizes.items())
            hint = "if they mean different things, give them different names"
            yield Finding("two sizes", paths, text, hint, False)


def _find_integers(model: Tree) -> Iterator[Finding]:
    def is_integer(array: Payload) -> bool:
        return array.dtype == bool or bool(jnp.issubdtype(array.dtype, jnp.integer))

    paths = _paths(model, is_integer)
    if paths:
        hint = "differentiate by eqx.filter_grad, and give the optimiser eqx.filter(model, eqx.is_inexact_array)"
        yield Finding("integers", paths, "arrays that have no gradient", hint, False)


# In the order of the report.
_FINDERS: tuple[Callable[[Tree], Iterator[Finding]], ...] = (
    _find_reused,
    _find_static,
    _find_on_host,
    _find_lost,
    _find_stale,
    _find_not_finite,
    _find_mixed,
    _find_sizes,
    _find_integers,
)


def unreached(
    model: Tree, loss_fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[str, ...]:
    """List the paths of floating arrays that no gradient of a loss reaches.

    Nothing is computed: the gradient is traced, and zeros are propagated through its program, also through loops and
    branches. So the result depends on how the loss is computed, not on values: a weight is reached even if a zero
    weight multiplies its output.

    Args:
        model: a model, which may be abstract.
        loss_fn: a function of the model and `args` that returns a loss, or a tuple that begins with it.
        args: further arguments of `loss_fn`.
        kwargs: keyword arguments of `loss_fn`.

    Examples:
        >>> norm = axn.nn.LayerNorm.init(axn.Axis("embed", 4))
        >>> axn.debug.unreached(norm, lambda norm: norm.weight.sum())
        ('bias',)
    """
    leaves, structure = jax.tree.flatten((model, args, kwargs))
    paths = [parameter.path for parameter in parameters.walk(model)]
    # The leaves of the model come first in the flat list.
    count = len(jax.tree.leaves(model))
    arrays = [i for i, leaf in enumerate(leaves) if has_type(leaf)]
    chosen = [i for i in arrays if i < count and _is_floating(leaves[i])]
    others = sorted({*arrays} - {*chosen})

    # All arrays are inputs: an operation on arrays of a closure would run at once, and abstract ones have no values.
    def loss(floating: Tree, rest: Tree) -> Any:
        everything = list(leaves)
        for i, leaf in (*zip(chosen, floating, strict=True), *zip(others, rest, strict=True)):
            everything[i] = leaf
        model, args, kwargs = jax.tree.unflatten(structure, everything)
        result = loss_fn(model, *args, **kwargs)
        if isinstance(result, tuple):
            result = result[0]
        return result.scalar() if isinstance(result, NamedArray) else result

    traced = jax.make_jaxpr(jax.grad(loss))(
        [leaves[i] for i in chosen], [leaves[i] for i in others]
    )
    zeros = _follow(traced.jaxpr, [False] * len(traced.jaxpr.invars), traced.consts)
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


def _follow(jaxpr: Any, known: Sequence[bool], constants: Sequence[Payload] = ()) -> list[bool]:
    """Return which results of a program are zero, for given inputs that are zero."""
    zero = dict(zip(jaxpr.invars, known, strict=True))
    # A constant array is zero by chance, such as a bias at the start; a scalar is zero because somebody wrote 0.
    for var, value in zip(jaxpr.constvars, constants, strict=False):
        zero[var] = not jnp.shape(value) and _is_inexact(var) and not np.any(value)

    def is_zero(atom: Any) -> bool:
        if hasattr(atom, "val"):
            return not np.any(atom.val)
        return bool(zero.get(atom, False))

    for eqn in jaxpr.eqns:
        results = _follow_operation(eqn, list(map(is_zero, eqn.invars)))
        zero |= dict(zip(eqn.outvars, results, strict=True))
    return list(map(is_zero, jaxpr.outvars))


def _follow_operation(eqn: Any, known: list[bool]) -> list[bool]:
    """Return which results of one operation are zero."""
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.outvars)
    if name == "scan":
        return _follow_loop(eqn, known)
    if name == "cond":  # the first operand is the index of the branch
        branches = [_follow_inner(branch, known[1:]) for branch in params["branches"]]
        return list(map(all, zip(*branches, strict=True)))
    # Calls such as jit, remat and custom_vjp differ in the name of the parameter and in whether it is closed.
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    program = getattr(inner, "jaxpr", inner)
    if program is not None and len(program.invars) == len(known) and len(program.outvars) == count:
        return _follow_inner(inner, known)
    if name in _PRODUCTS:
        return [any(known)] * count
    # Indices and masks of zeros decide where elements go, not whether they are zero.
    floats = [zero for atom, zero in zip(eqn.invars, known, strict=True) if _is_inexact(atom)]
    return [_LINEAR.fullmatch(name) is not None and bool(floats) and all(floats)] * count


def _is_inexact(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def _follow_inner(program: Any, known: Sequence[bool]) -> list[bool]:
    """Propagate zeros through an inner program, which may have constants."""
    return _follow(getattr(program, "jaxpr", program), known, getattr(program, "consts", ()))


def _follow_loop(eqn: Any, known: list[bool]) -> list[bool]:
    """Propagate zeros through a loop: a carry is zero if it starts as zero and stays zero."""
    program = eqn.params["jaxpr"]
    inner = getattr(program, "jaxpr", program)
    # Stacked arrays have one dimension less inside the loop; constants come first, then carries.
    count = _count_equal_ranks(eqn.outvars, inner.outvars)
    last = _count_equal_ranks(eqn.invars, inner.invars)
    first = last - count
    carried = known[first:last]
    # Each iteration makes fewer carries zero, or ends.
    while True:
        results = _follow_inner(program, [*known[:first], *carried, *known[last:]])
        still = [before and after for before, after in zip(carried, results, strict=False)]
        if still == carried:
            return [*still, *results[count:]]
        carried = still


def _count_equal_ranks(outside: Sequence[Payload], inside: Sequence[Payload]) -> int:
    """Count the values that a loop passes complete, not slice by slice."""
    pairs = zip(outside, inside, strict=True)
    return sum(len(one.aval.shape) == len(other.aval.shape) for one, other in pairs)
