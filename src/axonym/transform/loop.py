"""Internal. The loop over a named axis that `scan`, `fold`, `map` and stacks of layers share.

It takes arguments apart into arrays and a skeleton, compiles one step for all positions, applies the checkpoint policy,
and puts the names back. It knows no layers: `nn.stack` passes a step like every other caller.
"""

import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from ..array import NamedArray, is_named_array
from ..axis import Axis, AxisSelector, selector
from ..base.kinds import is_array, type_text
from ..engine import auto, kernels
from ..engine.core import payload_of, wrap
from ..errors import (
    ArgumentError,
    AxisError,
    AxisSizeError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ..layout import context, explicit, tracing
from ..layout.assignment import Entry
from ..layout.scope import current_scope, hiding
from .carry import Keeper, settle_carry
from .checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec
from .leaves import (
    Arguments,
    Parts,
    Skeleton,
    find_dimension,
    is_hole,
    make_mover,
    make_namer,
    repeat_prefix,
    take_arrays,
)


def is_scanned_by_default(leaf: object) -> bool:
    """Return whether a leaf is scanned: named arrays that have the axis are, and plain arrays with a dimension."""
    return isinstance(leaf, NamedArray) or (is_array(leaf) and leaf.ndim > 0)  # type: ignore[attr-defined]  # an array has ndim


Pairs = Callable[..., tuple[Any, Any]]


class _Plan(NamedTuple):
    """All of a loop but its step and its arrays, as the key of a cache.

    Attributes:
        function: its name in errors.
        pairs: how the step is called, see `loop`.
        axis: the axis that it runs along.
        size: its size.
        policy: what is kept for the backward pass.
        groups: the number of groups of steps.
        reverse: whether it runs from the last position to the first.
        unroll: the number of steps in one iteration.
        kind: the type of `unroll`, since True is equal to 1.
        checkpointed: whether the step follows the policy itself.
        carry: the carry.
        arguments: the arguments of one step.
    """

    function: str
    pairs: Pairs
    axis: str
    size: int
    policy: ScanCheckpointPolicy
    groups: int
    reverse: bool
    unroll: int | bool
    kind: type
    checkpointed: bool
    carry: Skeleton
    arguments: Skeleton


def loop(
    function: str,
    step: Callable[..., Any],
    axis: AxisSelector,
    remat: ScanCheckpointSpec,
    reverse: bool,
    unroll: int | bool,
    is_scanned: object = is_scanned_by_default,
    *,
    checkpointed: bool = False,
    pairs: Pairs | None = None,
    out_axis: int = 0,
) -> Callable[..., Any]:
    """Make the function `(init, *args, **kwargs)` that loops `step` over the axis.

    Args:
        function: its name in errors.
        checkpointed: whether the step applies `remat` itself, so that only groups of steps remain.
        pairs: a module-level function that calls the step and returns a pair of carry and output: `pairs(function,
            step, carry, *args, **kwargs)`. By default, the step itself returns such a pair. The compiled loop is cached
            as long as `step` lives, so do not wrap it in a new function at each call.
        out_axis: the place of the axis in outputs.
    """
    name, size = selector(axis, function)
    policy = ScanCheckpointPolicy.make(remat)

    @functools.wraps(step)
    def run_loop(init: object, *args: object, **kwargs: object) -> Any:
        given: list[Any] | None = None
        if not callable(is_scanned):
            given = repeat_prefix(function, is_scanned, (args, kwargs))

        def dimension(i: int, leaf: object) -> int | None:
            at = find_dimension(leaf, name)
            if at is None:
                return None
            wanted = is_scanned if given is None else given[i]
            return at if (wanted(leaf) if callable(wanted) else wanted) else None

        if not args and not kwargs and size is None:
            raise _explain_lonely_carry(function, name, init)
        arguments = Arguments(function, (name, size), (args, kwargs), dimension)
        # Arrays that stay the same in all steps become arguments of the compiled loop too, not its constants.
        start, skeleton = take_arrays(init)
        carry, held = skeleton.take_constants()
        rest, whole = arguments.skeleton.take_constants()
        plan = _Plan(
            function=function,
            pairs=pairs or _return_pair,
            axis=name,
            size=arguments.size,
            policy=policy,
            groups=policy.groups(arguments.size),
            reverse=reverse,
            unroll=unroll,
            kind=type(unroll),
            checkpointed=checkpointed,
            carry=carry,
            arguments=rest,
        )
        # Transposes here are compiled once for all steps.
        scanned = list(map(_move_first, arguments.arrays, arguments.dims))
        arrays = (list(map(jnp.asarray, start)), held, scanned, whole)
        run = _find_compiled(step, plan, arrays) or functools.partial(_run_plan, plan, step)
        last, (outputs, result) = run(*arrays)
        stacked = make_namer(function, Axis(name, plan.size), out_axis)
        moved = make_mover(function, name, out_axis)
        return carry.fill(last, held), result.fill(outputs, name=stacked, plain=moved)

    return run_loop


Compiler = Callable[[_Plan], Callable[..., Callable[..., Any] | None]]

# A cache that does not keep a step alive: its compiled loops, and what they close over, are dropped with it. The key is
# the identity, since equal steps may close over different values.
_loops: dict[int, tuple["weakref.ref[Any]", Compiler]] = {}


def _find_compiled(
    step: Callable[..., Any], plan: _Plan, arrays: Sequence[Any]
) -> Callable[..., Any] | None:
    """Return the compiled loop of a step outside transformations; None if it cannot be cached.

    As in JAX itself, steps are compared by identity. Inside another trace, the loop is traced into the outer program,
    with its constants. Under `jax.disable_jit`, nothing is compiled: steps get values, for debuggers and prints.
    """
    config: Any = jax.config  # its stubs leave the options out
    if config.jax_disable_jit or any(map(_is_traced, itertools.chain(*arrays))):
        return None
    if not plan.carry.may_be_kept() or not plan.arguments.may_be_kept():
        return None
    try:
        key, known = id(step), _loops.get(id(step))
        if known is None or known[0]() is not step:
            reference = weakref.ref(step, lambda _: _loops.pop(key, None))
            known = _loops[key] = reference, _make_compiler(reference)
        choose = known[1](plan)
    except TypeError:  # a step without weak references, or a part of the plan that is not hashable
        return None
    return choose(*arrays)


def _is_traced(array: object) -> bool:
    return isinstance(array, Tracer)


def _make_compiler(step: "weakref.ref[Any]") -> Compiler:
    """Return a function that compiles the loops of a step and caches them."""

    @functools.lru_cache(64)
    def compile_plan(plan: _Plan) -> Callable[..., Callable[..., Any] | None]:
        def run(*arrays: Any) -> Any:
            return _run_plan(plan, step(), *arrays)

        looped = jax.jit(run, inline=tracing.INLINE)
        closes: list[bool] = []

        def choose(*arrays: object) -> Callable[..., Any] | None:
            # Arrays that a step closes over would be copied into a cached program; otherwise, they are arguments.
            if not closes:
                closes.append(any(jnp.ndim(const) for const in looped.trace(*arrays).jaxpr.consts))
            return None if closes[0] else looped

        return choose

    return compile_plan


def _run_plan(
    plan: _Plan,
    fn: object,
    start: Sequence[Any],
    held: Sequence[Any],
    scanned: Sequence[Any],
    whole: Sequence[Any],
) -> Any:
    """Return the arrays of the last carry, and the outputs as arrays and a skeleton.

    Args:
        start: the arrays of the carry that change.
        held: arrays in it that do not change.
        scanned: the arrays of the arguments that are scanned.
        whole: the others.
    """

    def loop(start: Sequence[object], keep: Keeper) -> Any:
        step = _make_step(plan, fn, held, whole, keep)
        run = _choose_scan(plan)(plan, step)
        if plan.policy.names and not plan.checkpointed:
            # JAX remembers the step that it traces here.
            check_names(plan.function, plan.policy, collect_checkpoint_names(run, start, scanned))
        return run(start, scanned)

    # A surrounding vmap may map a carry only from the first step on, over mesh axes that it must leave before.
    start = list(map(explicit.remove_taken_axes, start))
    with hiding((plan.axis,), loop=plan.function):
        return settle_carry(loop, start)


Step = Callable[[Any, Any], tuple[Any, Any]]


def _make_step(
    plan: _Plan, fn: Any, held: Sequence[Any], whole: Sequence[Any], keep: Keeper
) -> Step:
    """Make the step on arrays: it takes those of the carry, and of the scanned arguments at one position."""

    def step(carry: Any, scanned: Any) -> tuple[Any, Parts]:
        args, kwargs = plan.arguments.fill(scanned, whole)
        before = plan.carry.fill(carry, held)
        following, out = plan.pairs(plan.function, fn, before, *args, **kwargs)
        # The step may have changed the containers of the tree that it got.
        before = plan.carry.fill(carry, held)
        after, _ = take_arrays(_restore_order(plan.function, before, following))
        return keep(carry, list(map(jnp.asarray, after))), take_arrays(out)

    return step


def _choose_scan(plan: _Plan) -> Callable[[_Plan, Step], Step]:
    if plan.policy.alternating and not plan.checkpointed:
        return _scan_turns
    return _scan_steps if plan.groups == 1 else _scan_groups


def _scan_turns(plan: _Plan, step: Step) -> Step:
    """Make a loop over repetitions of several steps, each of which has its own policy."""
    turns, length = plan.policy.turns, plan.size // len(plan.policy.turns)
    unroll = plan.unroll
    if unroll is not True:
        unroll = max(1, unroll // len(turns))
    steps = [_checkpoint(turn, _mark_carry(turn, step), length, unroll) for turn in turns]
    places = list(enumerate(steps))
    if plan.reverse:
        places.reverse()

    def repetition(carry: object, xs: Sequence[jax.Array]) -> Any:
        outputs: dict[int, Any] = {}
        for at, own in places:
            carry, outputs[at] = own(carry, [x[at] for x in xs])
        ordered = [outputs[at] for at in range(len(turns))]
        return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *ordered)

    def run(carry: Any, xs: Any) -> Any:
        apart = [x.reshape(length, len(turns), *x.shape[1:]) for x in xs]
        last, ys = lax.scan(
            repetition, carry, apart, length=length, reverse=plan.reverse, unroll=unroll
        )
        return last, jax.tree.map(lambda y: y.reshape(plan.size, *y.shape[2:]), ys)

    return run


def _scan_steps(plan: _Plan, step: Step) -> Step:
    """Make a loop over all steps."""
    if not plan.checkpointed:
        step = _checkpoint(plan.policy, _mark_carry(plan.policy, step), plan.size, plan.unroll)

    def run(carry: object, xs: object) -> Any:
        # JAX takes no symbolic length, but that of an array.
        length = None if xs else plan.size
        return lax.scan(step, carry, xs, length=length, reverse=plan.reverse, unroll=plan.unroll)

    return run


def _scan_groups(plan: _Plan, step: Step) -> Step:
    """Make a loop over groups of steps; only the carries between groups are kept."""
    groups, length = plan.groups, plan.size // plan.groups
    if not plan.checkpointed:
        step = _checkpoint(plan.policy, step, length, plan.unroll)

    def group(carry: object, xs: object) -> Any:
        return lax.scan(step, carry, xs, length=length, reverse=plan.reverse, unroll=plan.unroll)

    # There are two levels of recomputation: the gradient of a group computes its carries again, and then the dropped
    # values of each step. Memory holds the carries between groups, and those in one group.
    checked_group = plan.policy.wrap(_mark_carry(plan.policy, group))

    def run(carry: Any, xs: Any) -> Any:
        # The axis becomes two, so that the outer loop passes a group of positions to the inner one.
        grouped = [x.reshape(groups, length, *x.shape[1:]) for x in xs]
        last, ys = lax.scan(checked_group, carry, grouped, length=groups, reverse=plan.reverse)
        return last, jax.tree.map(lambda y: y.reshape(groups * length, *y.shape[2:]), ys)

    return run


def _checkpoint(policy: ScanCheckpointPolicy, step: Step, length: int, unroll: int | bool) -> Step:
    # Not `length <= unroll`: a symbolic length has no order.
    unrolled = unroll is True or length in range(unroll + 1)
    return policy.wrap(step, unrolled=unrolled)


def _mark_carry(policy: ScanCheckpointPolicy, step: Step) -> Step:
    def mark(carry: object, xs: object) -> tuple[Any, Any]:
        return step(*policy.mark(carry, xs))

    return mark


def collect_checkpoint_names(fn: Callable[..., Any], *args: object) -> set[str]:
    """Return the names that `tree_checkpoint_name` gives to values inside a function."""
    return _collect_names(jax.make_jaxpr(fn)(*args).jaxpr)


def _collect_names(jaxpr: Any) -> set[str]:
    # Programs contain programs: those of loops, conditions, and jitted functions.
    found: set[str] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            found.add(equation.params["name"])
        for value in equation.params.values():
            # A loop has one program, and a condition a tuple of them.
            parts: Iterable[object] = value if isinstance(value, list | tuple) else (value,)
            for part in parts:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    found |= _collect_names(inner)
    return found


def check_names(function: str, policy: ScanCheckpointPolicy, found: Iterable[str]) -> None:
    """Warn of names in a policy that no value has, since they save nothing."""
    known = sorted(set(found))
    for name in policy.names:
        if name not in known:
            problem = (
                f"the checkpoint policy names {name!r}, but no value inside of a step has this name"
            )
            line = f"names there: {', '.join(map(repr, known)) or 'none'}"
            hint = suggestion(name, known) or "give it with tree_checkpoint_name"
            warnings.warn(message(function, problem, line, hint=hint), stacklevel=2)


def pair(function: str, result: object) -> tuple[Any, Any]:
    """Check that a step returned a carry and an output.

    Raises:
        OperandError: if not.
    """
    if isinstance(result, tuple) and len(result) == 2:
        return result
    problem = f"the step must return a pair of carry and output, not {type_text(result)}"
    raise OperandError(
        message(function, problem, hint="use fold for a step that returns the carry alone")
    )


def _return_pair(
    function: str, step: Callable[..., Any], *args: object, **kwargs: object
) -> tuple[Any, Any]:
    return pair(function, step(*args, **kwargs))


def _move_first(array: object, dim: int) -> jax.Array:
    # Each device runs all steps, so that none can hold only some of them.
    array = auto.whole(jnp.asarray(array), (dim,))
    return jnp.moveaxis(array, dim, 0) if dim else array


def _restore_order(function: str, before: object, after: object) -> Any:
    """Give the carry of a step its previous axis order.

    Raises:
        AxisError: if an array has other axes than before; AxisSizeError for other sizes.
        OperandError: if anything else than the values of arrays changes.
    """
    tree: object
    olds, tree = jax.tree.flatten_with_path(before, is_leaf=is_named_array)
    news, other = jax.tree.flatten(after, is_leaf=is_named_array)
    if tree != other:
        lines = (f"before: {tree}", f"after: {other}")
        is_pair = _is_pair_for_scan(function, tree, after)
        hint = "use scan for a step that returns a pair of carry and output" if is_pair else None
        problem = "a step changes the structure of the carry"
        raise OperandError(message(function, problem, *lines, hint=hint))
    return jax.tree.unflatten(
        tree, [_restore_leaf(function, *old, new) for old, new in zip(olds, news, strict=True)]
    )


def _is_pair_for_scan(function: str, carry: object, after: object) -> bool:
    """Return whether the step of a fold wrongly returned a pair of the carry and an output."""
    if not function.endswith("fold") or not isinstance(after, tuple) or len(after) != 2:
        return False
    return jax.tree.structure(after[0], is_leaf=is_named_array) == carry


def _restore_leaf(function: str, path: Any, old: Any, new: Any) -> Any:
    """Check one leaf of a carry, and give it its previous axis order."""
    if _is_data(old) and _is_data(new):
        before, after = old, new
    elif (
        isinstance(old, NamedArray)
        and isinstance(new, NamedArray)
        and _holds_data(old)
        and _holds_data(new)
    ):
        if set(old.names) != set(new.names):
            hint = "start with the axes that a step returns, or reduce what it returns"
            raise AxisError(
                _describe_change(function, "changes the axes of the carry", old, new, hint)
            )
        if old.names != new.names:
            new = wrap(new, kernels.line_up(new.array, new.names, old.names), old.names)
        before, after = old.array, new.array
    elif not (_holds_data(old) or _holds_data(new)) and (
        old is new or _comparable(old) == _comparable(new)
    ):
        return new
    else:
        problem, start = "changes what an entry of the carry is", _start_hint(old, new)
        raise OperandError(_describe_change(function, problem, old, new, start))
    if jnp.shape(before) != jnp.shape(after):
        raise AxisSizeError(_describe_change(function, "changes sizes of the carry", old, new))
    first, then = jax.typeof(before), jax.typeof(after)
    # JAX gives a weakly typed start the dtype that both promote to, and traces the step again.
    if first.dtype != then.dtype and not (
        first.weak_type and jnp.result_type(before, after) != first.dtype
    ):
        lines = [f"before: {_describe_entry(old)}, {first.dtype}"]
        lines += [f"after: {_describe_entry(new)}, {then.dtype}"]
        hint = f'cast what it returns, x.astype("{first.dtype}"), or start with {then.dtype}'
        raise OperandError(
            message(function, f"a step changes the dtype of {_name_entry(path)}", *lines, hint=hint)
        )
    if first.mat.varying != then.mat.varying:
        raise OperandError(
            _describe_varying(function, path, old, first.mat.varying, then.mat.varying)
        )
    return new


def _name_entry(path: Any) -> str:
    return f"carry{jax.tree_util.keystr(path)}" if path else "the carry"


def _describe_varying(
    function: str, path: object, leaf: object, before: Set[str], after: Set[str]
) -> str:
    """Describe that a step makes an array vary over mesh axes of a shard_map, or stop varying over them."""
    if after - before:
        becomes, cast = "differ between the", "let it vary from the start"
    else:
        becomes, cast = "the same on all", "cast what it returns"
    axes = tuple(sorted(after - before or before - after))
    listed = ", ".join(map(repr, axes))
    problem = f"a step makes {_name_entry(path)} {becomes} devices of mesh axis {listed}"
    facts: list[str] = []
    for when, over in (("before", before), ("after", after)):
        named = ", ".join(sorted(over)) or "no mesh axis"
        facts.append(f"{when}: {_describe_entry(leaf)}, varying over {named}")
    return message(function, problem, *facts, hint=f"{cast}: axn.pcast(x, {_spell_axes(axes)})")


def _spell_axes(mesh_axes: tuple[str, ...]) -> str:
    """Format the names of axes that are mapped to mesh axes; a mesh axis that no such axis has stands for itself."""
    entries = dict(context.current_mapping() or {})
    scope = current_scope()
    stored: Mapping[str, Entry] = {} if scope is None else scope.mappings.parameters
    fits: dict[str, str] = {}
    for name, entry in entries.items():
        # A name that parameters split otherwise would be ambiguous in the hint.
        if {*entry} <= {*mesh_axes} and stored.get(name, entry) == entry:
            for axis in entry:
                fits.setdefault(axis, name)
    names = dict.fromkeys(fits.get(axis, axis) for axis in mesh_axes)
    shown = [f'"{name}"' for name in names]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def _is_data(leaf: object) -> bool:
    return is_array(leaf) or isinstance(leaf, int | float | complex)


def _holds_data(leaf: object) -> bool:
    return _is_data(payload_of(leaf)) and not is_hole(leaf)


def _comparable(leaf: object) -> Any:
    # `==` of named arrays would compare elements, which holes do not have.
    return (NamedArray, leaf.names, leaf.array) if isinstance(leaf, NamedArray) else leaf


def _describe_change(
    function: str, what: str, old: object, new: object, hint: str | None = None
) -> str:
    facts = f"before: {_describe_entry(old)}", f"after: {_describe_entry(new)}"
    return message(function, f"a step {what}", *facts, hint=hint)


def _start_hint(old: object, new: object) -> str | None:
    """Return the hint for a loop whose carry starts as a plain number or array, and becomes a named array."""
    if isinstance(old, NamedArray) or not isinstance(new, NamedArray):
        return None
    axes = "(...)" if new.names else "()"
    return f"start with a named array too, such as axn.zeros({axes})"


def _describe_entry(leaf: Any) -> str:
    if isinstance(leaf, NamedArray):
        return f"a NamedArray with {describe(leaf.names, getattr(leaf.array, 'shape', None))}"
    if is_array(leaf):
        return f"a plain array of shape {leaf.shape}"
    return repr(leaf)


def _explain_lonely_carry(function: str, axis: str, init: object) -> ArgumentError:
    """Build the error for a loop that got only a carry, or only arrays to loop over."""
    leaves = jax.tree.leaves(init, is_leaf=is_named_array)
    has_axis = any(isinstance(leaf, NamedArray) and axis in leaf.names for leaf in leaves)
    along = f"which has axis {axis!r}" if has_axis else f"and nothing with axis {axis!r}"
    problem = f"got only the initial carry, {along}"
    hint = f'write axn.{function}(f, "{axis}")(init, x); for a loop without arrays, give its size: Axis("{axis}", size)'
    return ArgumentError(message(function, problem, hint=hint))
