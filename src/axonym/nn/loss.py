"""Losses."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..array import NamedArray
from ..axis import Axis, AxisSelection, AxisSelector, names_in, selection, selector
from ..base.dtypes import at_least_float32, widen
from ..create import arange
from ..engine import checks, kernels, pointwise, primitives
from ..engine.audits import expect
from ..engine.core import Core, axes_of, facts, wrap
from ..engine.renaming import up_to_renaming
from ..errors import ArgumentError, OperandError, message
from ..layout import explicit
from ..layout.context import mapped
from ..names import plans
from ..names.plans import Names
from ..ops import elementwise, logical, reduce
from ..ops.contract import dot
from ..ops.pad import pad
from ..ops.reduce import mean
from ..ops.shape import unflatten_axis
from ..ops.where import where as select
from ..partitioning.shard import auto_sharded
from ..transform import scan as loops
from .settings import as_python, fraction, integer

__all__ = [
    "binary_cross_entropy_loss",
    "chunked_cross_entropy_loss",
    "cross_entropy_loss",
    "cross_entropy_loss_and_log_normalizers",
    "reduce_loss",
]

Reduction = Callable[..., NamedArray]
Scalar = float | jax.Array


def binary_cross_entropy_loss(
    logits: NamedArray,
    targets: NamedArray,
    reduction: Reduction | None = mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
) -> NamedArray:
    """Return the negative log-likelihood of binary targets under the sigmoid of `logits`, in nats.

    Args:
        logits: any axes.
        targets: booleans, zeros and ones, or probabilities; axes among those of `logits`.
        reduction: see `cross_entropy_loss`.
        where: see `cross_entropy_loss`.
        reduction_axis: see `cross_entropy_loss`.
    """
    losses = pointwise.nary(_binary_cross_entropy_loss, logits, targets)
    return _reduced("binary_cross_entropy_loss", losses, reduction, reduction_axis, where)


def _binary_cross_entropy_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    x = widen(logits)
    # Unsigned integers have no 0 - 1, and narrow floats no exact 1 - p.
    yes = targets.astype(x.dtype)
    positive = x > 0
    # The exponential of a nonpositive number is at most one, and the large part is exact: no digits cancel.
    losses = jnp.log1p(jnp.exp(jnp.where(positive, -x, x))) + x * (positive.astype(x.dtype) - yes)
    return losses.astype(_floating(logits.dtype))


def cross_entropy_loss(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    reduction: Reduction | None = mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> NamedArray:
    """Return the negative log-likelihood of targets under the softmax of `logits`, in nats.

    It computes in float32 or wider, and returns the dtype of the logits, float32 for integers.

    Args:
        logits: axes {Label, ...}.
        Label: the axis of classes.
        targets: class indices, axes {...}; or probabilities, axes {Label, ...}. An index out of range gives NaN, unless
            `where` or `ignore_index` excludes it.
        reduction: reduces the losses, such as `axn.mean` or `axn.sum`; None returns one for each target. With `where`,
            an extremum needs a value to start from: `functools.partial(axn.max, initial=0.0)`.
        where: booleans, axes among those of the losses: which ones count. Their mean is zero if none does.
        reduction_axis: the axes to reduce; by default all.
        z_loss: the factor of an added squared log-sum-exp of the logits, which keeps them from drifting.
        label_smoothing: the share of the targets' probability to spread evenly over all classes.
        ignore_index: a class index, such as -100, that marks targets that do not count.

    Raises:
        AxisNotFoundError: if `logits` lacks `Label`.
        OperandError: if targets without `Label` are not integers.
        ArgumentError: if `label_smoothing` is not between zero and one, or `ignore_index` is given for targets that are
            not class indices.

    Reference:
        Szegedy et al. (2016), Rethinking the inception architecture, section 7 (label smoothing).
        Chowdhery et al. (2022), PaLM, section 5 (z-loss).
    """
    label, _ = selector(Label, "cross_entropy_loss")
    counted = _counted("cross_entropy_loss", label, targets, where, ignore_index)
    losses, _ = _losses(
        logits, Label, _known(targets, label, counted), label_smoothing, as_python(z_loss)
    )
    return _reduced("cross_entropy_loss", losses, reduction, reduction_axis, counted)


def chunked_cross_entropy_loss(
    x: NamedArray,
    weight: NamedArray,
    Embed: AxisSelector,
    Label: AxisSelector,
    targets: NamedArray,
    reduction: Reduction | None = mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    block_size: int = 8192,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> NamedArray:
    """Return `cross_entropy_loss` of the logits `dot(x, weight, axis=Embed)` without holding all of them.

    A loop computes the logits of `block_size` classes at a time, and again in the backward pass: they take the memory
    of one block, at the cost of computing their product once more. Logits are accumulated, and the loss is returned, in
    float32 or wider.

    Args:
        x: axes {Embed, ...}, in any layout.
        weight: maps `x` to logits; axes {Label, Embed}.
        Embed: the axis to sum over.
        Label: the axis of classes.
        targets: class indices; axes among those of `x` without `Embed`.
        reduction: see `cross_entropy_loss`.
        where: see `cross_entropy_loss`.
        reduction_axis: see `cross_entropy_loss`.
        block_size: the largest number of classes in a block.
        z_loss: see `cross_entropy_loss`.
        label_smoothing: see `cross_entropy_loss`.
        ignore_index: see `cross_entropy_loss`.

    Raises:
        AxisNotFoundError: if `weight` lacks `Label`, or one of the two `Embed`.
        OperandError: if the targets are not integers.
        ArgumentError: if `block_size` is not positive, or `label_smoothing` not between zero and one.
    """
    function = "chunked_cross_entropy_loss"
    label, _ = selector(Label, function)
    checks.require(function, weight, Label, "weight")
    checks.require(function, weight, Embed, "weight")
    checks.require(function, x, Embed, "input")
    size = weight.axis_size(Label)
    _check_class_numbers(function, targets, label)
    label_smoothing, z_loss = _smoothing(function, label_smoothing), as_python(z_loss)
    block_size = integer(function, "block_size", block_size)
    if block_size < 1:
        raise ArgumentError(message(function, f"block_size must be positive, got {block_size}"))
    rest = plans.without(x.names, names_in(selection(Embed, function)))
    checks.planned(function, (x, targets), plans.require, rest, targets.names)
    checks.check_sizes(function, (x.names, targets.names), (x.array, targets.array))
    counted = _counted(function, label, targets, where, ignore_index)
    targets = _reported(function, _known(targets, label, counted), label, size)
    targets = targets.astype(_counting(targets))
    blocks = _blocks(auto_sharded(weight), label, size, block_size)
    Block, Chunk = blocks.Block, blocks.Chunk
    wide = widen(x)

    def part(block: NamedArray, chunk: NamedArray) -> tuple[NamedArray, ...]:
        # Cast here, the gradient of a narrow `x` is still accumulated over the chunks in a wide dtype.
        logits = dot(wide.astype(x.dtype), block, axis=Embed, preferred_element_type=wide.dtype)
        classes = arange(Block) * blocks.stride + chunk * blocks.chunk_stride
        if Block.size * Chunk.size > size:
            logits = select(classes < size, logits, -jnp.inf)
        largest = jax.lax.stop_gradient(reduce.max(logits, label))
        sums = reduce.sum(elementwise.exp(logits - largest), label)
        picked = reduce.sum(pointwise.nary(_pick, logits, targets, classes), label)
        total = picked
        if label_smoothing:
            total = reduce.sum(logits, label, where=classes < size)
        return largest, sums, picked, total

    each_chunk = loops.map(part, Chunk, remat=True)
    largest, sums, picked, total = each_chunk(blocks.weight, arange(Chunk))
    top = reduce.max(largest, Chunk)
    normalizers = elementwise.log(reduce.sum(sums * elementwise.exp(largest - top), Chunk))
    picked = reduce.sum(picked, Chunk) - top
    if label_smoothing:
        mean_logit = reduce.sum(total, Chunk) / size - top
        picked = (1 - label_smoothing) * picked + label_smoothing * mean_logit

    losses = select((targets >= 0) & (targets < size), normalizers - picked, jnp.nan)
    if _is_used(z_loss):
        losses = losses + z_loss * (normalizers + top) ** 2
    return _reduced(function, losses, reduction, reduction_axis, counted)


def _check_class_numbers(function: str, targets: NamedArray, label: str) -> None:
    if not isinstance(targets, Core):
        raise checks.unnamed(function, targets)
    if label in targets.names or not jnp.issubdtype(targets.dtype, jnp.integer):
        problem = f"the targets have dtype {targets.dtype} and axes {facts(targets)}"
        hint = f"class numbers are integers without axis {label!r}; probabilities need cross_entropy_loss"
        raise OperandError(message(function, problem, hint=hint))


class _Blocks(NamedTuple):
    """The classes of a weight in equal chunks.

    Attributes:
        Block: the axis of classes within a chunk.
        Chunk: the axis of chunks.
        weight: axes {Block, Chunk, ...}.
        stride: how far apart neighbouring classes of a chunk are.
        chunk_stride: how far apart the first classes of neighbouring chunks are.
    """

    Block: Axis
    Chunk: Axis
    weight: NamedArray
    stride: int
    chunk_stride: int


def _blocks(weight: NamedArray, label: str, size: int, block_size: int) -> _Blocks:
    """Cut the classes of a weight into equal chunks.

    A chunk is a slice of the weight, without a copy. Where classes are sharded, it takes some from every shard, so that
    each device has its part of each chunk.
    """
    fewest = max(1, -(-size // block_size))
    # Without a divisor nearby, zeros pad the last classes.
    chunks = next((n for n in range(fewest, min(2 * fewest, size) + 1) if size % n == 0), fewest)
    Block, Chunk = Axis(label, -(-size // chunks)), Axis(f"chunk of {label}", chunks)
    if Block.size * chunks > size:
        weight = pad(weight, {label: (0, Block.size * chunks - size)})
    own = explicit.read_layout(weight.array)[weight.names.index(label) - len(weight.names)]
    if own or mapped((label,)).get(label):
        weight = unflatten_axis(weight, label, (Block, Chunk))
        return _Blocks(Block, Chunk, weight, stride=chunks, chunk_stride=1)
    weight = unflatten_axis(weight, label, (Chunk, Block))
    return _Blocks(Block, Chunk, weight, stride=1, chunk_stride=Block.size)


def _pick(logits: jax.Array, targets: jax.Array, classes: jax.Array) -> jax.Array:
    """Keep the logits of the targets.

    It compares instead of gathering: the sum stays local where the classes are sharded, and the backward pass needs no
    scatter.
    """
    return primitives.where(primitives.equal(targets, classes), logits, 0)


def cross_entropy_loss_and_log_normalizers(
    logits: NamedArray, Label: AxisSelector, targets: NamedArray
) -> tuple[NamedArray, NamedArray]:
    """Return the `cross_entropy_loss` of each target, and the log-sum-exp of the logits."""
    return _losses(logits, Label, targets, 0.0, 0.0)


def _losses(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    label_smoothing: float,
    z_loss: Scalar,
) -> tuple[NamedArray, NamedArray]:
    """Return a loss for each target, and the log-sum-exp of the logits."""
    function = "cross_entropy_loss"
    for x in (logits, targets):
        if not isinstance(x, Core):
            raise checks.unnamed(function, x)
    label, size = selector(Label, function)
    checks.require(function, logits, Label, "logits")
    if label not in targets.names and not jnp.issubdtype(targets.dtype, jnp.integer):
        problem = f"the targets have dtype {targets.dtype} and lack axis {label!r}"
        hint = "class numbers must be integers, probabilities must have the axis of classes"
        lines = (f"logits have: {facts(logits)}", f"targets have: {facts(targets)}")
        raise OperandError(message(function, problem, *lines, hint=hint))
    label_smoothing = _smoothing(function, label_smoothing)
    # Whether they count is static, how much is not: a new value does not compile again.
    smooths, drifts = label_smoothing != 0, _is_used(z_loss)
    key = (logits.names, targets.names, (label, size), smooths, drifts)
    kernel = checks.planned(function, (logits, targets), _cross_entropy, *key)
    if label not in targets.names:
        classes = axes_of(function, logits)[logits.names.index(label)]
        _reported(function, targets, label, classes.size)
    losses, normalizers = kernels.run(
        kernel.call, logits.array, targets.array, label_smoothing, z_loss
    )
    return wrap(logits, losses, kernel.names), wrap(logits, normalizers, kernel.names)


@up_to_renaming("names", "targets", "label")
def _cross_entropy(
    names: Names, targets: Names, label: tuple[str, int | None], smooths: bool, drifts: bool
) -> kernels.Kernel:
    """Make the kernel of a cross entropy."""
    (at,) = plans.positions(names, (label[0],))
    plans.require(names, targets)
    soft = label[0] in targets
    result = plans.without(names, (label[0],))

    def losses(
        given: jax.Array,
        wanted: jax.Array,
        smoothing: Scalar,
        z_loss: Scalar,
    ) -> tuple[jax.Array, jax.Array]:
        logits = widen(given)
        # Differences to the largest logit are exact where the logits themselves are large.
        largest = lax.stop_gradient(logits).max(at)
        # In sequence: the logits to pick from and the exponentials, which are as large, need not both be held.
        known: jax.Array | None = None
        share: Scalar = 1
        if soft:
            largest = _finite(largest)
            share = wanted.sum(at)
            picked = ((logits - jnp.expand_dims(largest, at)) * wanted).sum(at)
            picked, largest = lax.optimization_barrier((picked, largest))
        else:
            wanted = wanted.astype(_counting(wanted))
            lowest = np.array(0, wanted.dtype)
            known = lax.bitwise_and(lax.ge(wanted, lowest), wanted < logits.shape[at])
            if known.ndim:
                known = lax.squeeze(known, (at,))
            classes = lax.broadcasted_iota(wanted.dtype, logits.shape, at % logits.ndim)
            own = _pick(logits, wanted, classes).sum(at)
            # The maximum stays the same, but the exponentials wait for it; not every compiler heeds a barrier here.
            same = lax.max(largest, lax.stop_gradient(own))
            largest = _finite(primitives.where(known, same, largest))
            picked = lax.sub(own, largest)

        above = lax.expand_dims(lax.stop_gradient(largest), (at,))
        shifted = primitives.subtract(logits, above)
        normalizers = lax.log(lax.exp(shifted).sum(at))
        if smooths:
            share = (1 - smoothing) * share + smoothing
            picked = (1 - smoothing) * picked + smoothing * shifted.mean(at)
        found = primitives.subtract(normalizers, picked)
        if soft or smooths:
            found = normalizers * share - picked
        if known is not None:
            found = primitives.where(known, found, np.nan)
        normalizers = lax.add(normalizers, largest)

        if drifts:  # before the cast: the square may overflow float16, its weighted value less so
            found = found + z_loss * normalizers**2
        dtype = _floating(given.dtype)
        return found.astype(dtype), normalizers.astype(dtype)

    def body(
        logits: jax.Array,
        wanted: jax.Array,
        smoothing: Scalar,
        z_loss: Scalar,
    ) -> tuple[jax.Array, jax.Array]:
        checks.check_sizes("cross_entropy_loss", (names, targets), (logits, wanted))
        checks.check_given("cross_entropy_loss", (label,), names, logits.shape)
        logits, wanted = kernels.align_layouts((names, targets), (logits, wanted), names)
        return losses(logits, kernels.lined_up(wanted, targets, names), smoothing, z_loss)

    return kernels.Kernel(result, body)


def reduce_loss(
    losses: NamedArray,
    reduction: Reduction | None = mean,
    reduction_axis: AxisSelection | None = None,
    where: NamedArray | None = None,
) -> NamedArray:
    """Reduce the losses that count; without a reduction or axes to reduce, set the others to zero.

    The mean of no losses is zero, and so are its gradients.

    Raises:
        OperandError: if `reduction` is not callable.
    """
    return _reduced("reduce_loss", losses, reduction, reduction_axis, where)


def _reduced(
    function: str,
    losses: NamedArray,
    reduction: Reduction | None,
    reduction_axis: AxisSelection | None,
    where: NamedArray | None,
) -> NamedArray:
    """Reduce losses as `reduce_loss` does; errors name the function that the user called."""
    if reduction is not None and not callable(reduction):
        hint = "pass axn.mean, axn.sum, or None for one loss for each target"
        raise OperandError(
            message(function, f"reduction must be a function, not {reduction!r}", hint=hint)
        )
    if isinstance(reduction_axis, Iterator):  # it is read more than once
        reduction_axis = tuple(reduction_axis)
    if reduction is None or (
        reduction_axis is not None and not selection(reduction_axis, function)
    ):
        if where is None:
            return losses
        return select(where, losses, 0)
    reduced = reduction(losses, reduction_axis, where=where)
    if where is None or reduction is not mean:
        return reduced
    own = where.names
    if reduction_axis is not None:
        chosen = selection(reduction_axis, function)
        own = tuple(name for name, _ in chosen if name in where.names)
    return select(reduce.any(where, own), reduced, 0)


def _counted(
    function: str,
    label: str,
    targets: NamedArray,
    where: NamedArray | None,
    ignore_index: int | None,
) -> NamedArray | None:
    """Return which targets count."""
    if ignore_index is None:
        return where
    if not isinstance(targets, Core):
        raise checks.unnamed(function, targets)
    if label in targets.names:
        problem = (
            f"ignore_index is a class number, but the targets are probabilities of axis {label!r}"
        )
        hint = "leave targets out by where=..."
        raise ArgumentError(
            message(function, problem, f"targets have: {facts(targets)}", hint=hint)
        )

    counted = logical.not_equal(targets, ignore_index)
    if where is None:
        return counted
    return logical.logical_and(counted.broadcast_axis(where.axes), where)


def _reported(function: str, targets: NamedArray, label: str, size: int) -> NamedArray:
    """Return targets, and report those out of range."""
    lines = f"targets have: {facts(targets)}"
    expect(function, "class", targets.array, 0, size - 1, lines, room=f"{label}={size}")
    return targets


def _known(targets: NamedArray, label: str, counted: NamedArray | None) -> NamedArray:
    """Replace targets that do not count by the first class, so that their losses are not NaN."""
    if not isinstance(counted, Core) or not isinstance(targets, Core) or label in targets.names:
        return targets
    if not set(counted.names) <= set(targets.names) or not jnp.issubdtype(
        targets.dtype, jnp.integer
    ):
        return targets
    return select(counted, targets, 0)


def _counting(classes: jax.Array | NamedArray) -> np.dtype[np.generic]:
    """Return a dtype that can hold the last class, as uint8 might not."""
    dtype: np.dtype[np.generic] = jnp.result_type(classes.dtype, jnp.int32)
    return dtype


def _finite(largest: jax.Array) -> jax.Array:
    """Return what to subtract from logits; an infinite maximum would give NaN."""
    return primitives.where(lax.is_finite(largest), largest, 0)


def _floating(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the dtype of the losses: that of the logits, float32 for integers."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    wide: np.dtype[np.generic] = at_least_float32(dtype)
    return wide


def _is_used(factor: Scalar) -> bool:
    """Return whether a term counts; one with a traced factor might."""
    return not isinstance(factor, int | float) or factor != 0


def _smoothing(function: str, label_smoothing: float) -> float:
    return fraction(function, "label_smoothing", label_smoothing, "a fraction")
