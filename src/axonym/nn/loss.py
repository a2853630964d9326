"""Losses: cross entropies of classes and of booleans, and how to reduce losses to one number.

All of them compute in float32 or wider. Logits may be sharded along any axis, also along the classes: targets are
compared with class numbers, so that each device reads only its own logits.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..array import NamedArray
from ..axis import Axis, AxisSelection, AxisSelector, names_in, selection, selector
from ..base.calls import explain_calls
from ..base.dtypes import at_least_float32, widen
from ..create import arange
from ..engine import checks, kernels, pointwise, primitives
from ..engine.audits import expect
from ..engine.core import Core, axes_of, facts, wrap
from ..engine.renaming import share_by_renaming
from ..errors import ArgumentError, AxisNotFoundError, OperandError, message
from ..layout import explicit
from ..layout.context import map_names
from ..names import plans
from ..names.plans import Names
from ..ops import elementwise, logical, reduce
from ..ops.contract import dot
from ..ops.pad import pad
from ..ops.reduce import mean
from ..ops.shape import unflatten_axis
from ..ops.where import where as select
from ..partitioning.padding import PaddedArray
from ..partitioning.shard import auto_sharded
from ..transform import scan as loops
from .settings import as_python, check_fraction, check_int

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

    Returns:
        The reduced losses, or axes {...} of the logits without a reduction; in the dtype of the logits, float32 for
        integers.

    Examples:
        >>> logits, targets = axn.named([0.0, 4.0], "batch"), axn.named([True, True], "batch")
        >>> axn.nn.binary_cross_entropy_loss(logits, targets, reduction=None).tolist()
        [0.693..., 0.018...]
    """
    losses = pointwise.nary(_binary_cross_entropy_loss, logits, targets)
    return _reduce("binary_cross_entropy_loss", losses, reduction, reduction_axis, where)


def _binary_cross_entropy_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    x = widen(logits)
    # Before the subtraction below: unsigned integers have no 0 - 1, and narrow floats no exact 1 - p.
    yes = targets.astype(x.dtype)
    positive = x > 0
    # The exponential of a nonpositive number is at most one, and the large part is exact: no digits cancel.
    losses = jnp.log1p(jnp.exp(jnp.where(positive, -x, x))) + x * (positive.astype(x.dtype) - yes)
    return losses.astype(_choose_dtype(logits.dtype))


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

    Args:
        logits: axes {Label, ...}.
        Label: the axis of classes.
        targets: class indices, axes {...}; or probabilities, axes {Label, ...}. An index out of range gives NaN, unless
            `where` or `ignore_index` excludes it.
        reduction: reduces the losses, such as `axn.mean` or `axn.sum`; None returns one for each target. With `where`,
            an extremum needs a value to start from: `functools.partial(axn.max, initial=0.0)`.
        where: booleans that say which losses count, axes among those of the losses. The mean is zero if none does.
        reduction_axis: the axes to reduce; by default all.
        z_loss: the factor of an added squared log-sum-exp of the logits, which keeps them from drifting.
        label_smoothing: the share of the targets' probability to spread evenly over all classes.
        ignore_index: a class index, such as -100, that marks targets that do not count.

    Returns:
        The reduced losses, or axes {...} without a reduction; in the dtype of the logits, float32 for integers.

    Raises:
        AxisNotFoundError: if `logits` lacks `Label`, or one of the other axes of `targets`.
        OperandError: if targets without `Label` are not integers.
        ArgumentError: if `label_smoothing` is not between zero and one, or `ignore_index` is given for targets that are
            not class indices.

    Reference:
        Szegedy et al. (2016), Rethinking the inception architecture, section 7 (label smoothing).
        Chowdhery et al. (2022), PaLM, section 5 (z-loss).

    Examples:
        >>> logits = axn.named([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], ("batch", "vocab"))
        >>> targets = axn.named([0, 1], "batch")
        >>> axn.nn.cross_entropy_loss(logits, "vocab", targets, reduction=None).tolist()
        [0.239..., 1.098...]
        >>> axn.nn.cross_entropy_loss(logits, "vocab", targets).item()  # the mean
        0.669...
    """
    label, _ = selector(Label, "cross_entropy_loss")
    counted = _combine_masks("cross_entropy_loss", label, targets, where, ignore_index)
    targets = _fill_excluded(targets, label, counted)
    losses, _ = _compute_losses(logits, Label, targets, label_smoothing, as_python(z_loss))
    return _reduce("cross_entropy_loss", losses, reduction, reduction_axis, counted)


def chunked_cross_entropy_loss(
    x: NamedArray,
    weight: NamedArray | PaddedArray,
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
    """Return `cross_entropy_loss` of the logits `dot(x, weight, axis=Embed)`, but never hold all logits in memory.

    A loop computes the logits of `block_size` classes at a time, and again in the backward pass: they take the memory
    of one block, at the cost of one more product. The loop sums in float32 or wider, and the loss has the same dtype.

    Args:
        x: axes {Embed, ...}, in any layout.
        weight: maps `x` to logits; axes {Label, Embed}. Where `pad_axes` has padded it, the padding is no class.
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

    Returns:
        The reduced losses, or one for each position of `x` without a reduction.

    Raises:
        AxisNotFoundError: if `weight` lacks `Label`, or one of the two `Embed`.
        OperandError: if the targets are not integers.
        ArgumentError: if `block_size` is not positive, or `label_smoothing` not between zero and one.

    Examples:
        >>> Batch, Embed, Vocab = axn.make_axes(batch=2, embed=4, vocab=6)
        >>> x, weight = axn.ones((Batch, Embed)), axn.zeros((Vocab, Embed))
        >>> targets = axn.named([0, 5], Batch)
        >>> axn.nn.chunked_cross_entropy_loss(x, weight, Embed, Vocab, targets, block_size=2).item()  # log(6)
        1.791...
    """
    function = "chunked_cross_entropy_loss"
    label, _ = selector(Label, function)
    real = weight.abstract() if isinstance(weight, PaddedArray) else weight
    checks.require(function, real, Label, "weight")
    checks.require(function, real, Embed, "weight")
    checks.require(function, x, Embed, "input")
    size = real.axis_size(Label)
    _check_class_numbers(function, targets, label)
    label_smoothing, z_loss = _check_smoothing(function, label_smoothing), as_python(z_loss)
    block_size = check_int(function, "block_size", block_size)
    if block_size < 1:
        raise ArgumentError(message(function, f"block_size must be positive, got {block_size}"))
    rest = plans.without(x.names, names_in(selection(Embed, function)))
    checks.run_plan(function, (x, targets), plans.require, rest, targets.names)
    checks.check_sizes(function, (x.names, targets.names), (x.array, targets.array))
    counted = _combine_masks(function, label, targets, where, ignore_index)
    targets = _fill_excluded(targets, label, counted)
    _report_targets(function, targets, label, size)
    # Class numbers beyond the range of a narrow dtype would compare as others.
    targets = targets.astype(_choose_index_dtype(targets))
    table = weight.cut(label) if isinstance(weight, PaddedArray) else weight
    blocks = _chunk_classes(auto_sharded(table), label, table.axis_size(label), block_size)
    Block, Chunk = blocks.Block, blocks.Chunk
    wide = widen(x)

    def reduce_chunk(block: NamedArray, chunk: NamedArray) -> tuple[NamedArray, ...]:
        # A narrow `x` is cast back here, inside the loop, so that its gradient is summed over chunks in a wide dtype.
        logits = dot(wide.astype(x.dtype), block, axis=Embed, preferred_element_type=wide.dtype)
        classes = arange(Block) * blocks.stride + chunk * blocks.chunk_stride
        # The padding of the last classes has a weight, but no probability.
        if Block.size * Chunk.size > size:
            logits = select(classes < size, logits, -jnp.inf)
        largest = jax.lax.stop_gradient(reduce.max(logits, label))
        sums = reduce.sum(elementwise.exp(logits - largest), label)
        picked = reduce.sum(pointwise.nary(_pick, logits, targets, classes), label)
        # Without smoothing, nobody reads the total: any array will do.
        total = reduce.sum(logits, label, where=classes < size) if label_smoothing else picked
        return largest, sums, picked, total

    each_chunk = loops.map(reduce_chunk, Chunk, remat=True)
    largest, sums, picked, total = each_chunk(blocks.weight, arange(Chunk))
    # Each chunk has its own maximum; the sums are scaled to the largest of them.
    top = reduce.max(largest, Chunk)
    normalizers = elementwise.log(reduce.sum(sums * elementwise.exp(largest - top), Chunk))
    picked = reduce.sum(picked, Chunk) - top
    if label_smoothing:
        mean_logit = reduce.sum(total, Chunk) / size - top
        picked = (1 - label_smoothing) * picked + label_smoothing * mean_logit

    # A target out of range picks no logit, which would be a plausible loss.
    losses = select((targets >= 0) & (targets < size), normalizers - picked, jnp.nan)
    if _is_used(z_loss):
        losses = losses + z_loss * (normalizers + top) ** 2
    return _reduce(function, losses, reduction, reduction_axis, counted)


def _check_class_numbers(function: str, targets: NamedArray, label: str) -> None:
    """Check that targets are integers without the axis of classes."""
    if not isinstance(targets, Core):
        raise checks.no_names(function, targets)
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


def _chunk_classes(weight: NamedArray, label: str, size: int, block_size: int) -> _Blocks:
    """Cut the classes of a weight into equal chunks.

    A chunk is a slice of the weight, without a copy. If classes are sharded, a chunk takes some from every shard, so
    that each device has its part of each chunk.
    """
    fewest = max(1, -(-size // block_size))
    # A divisor of the size, but at most twice as many chunks; otherwise zeros pad the last classes, which copies.
    chunks = next((n for n in range(fewest, min(2 * fewest, size) + 1) if size % n == 0), fewest)
    Block, Chunk = Axis(label, -(-size // chunks)), Axis(f"chunk of {label}", chunks)
    if Block.size * chunks > size:
        weight = pad(weight, {label: (0, Block.size * chunks - size)})
    own = explicit.get_layout(weight.array)[weight.names.index(label) - len(weight.names)]
    if own or map_names({label: Block.size * chunks}).get(label):
        weight = unflatten_axis(weight, label, (Block, Chunk))
        return _Blocks(Block, Chunk, weight, stride=chunks, chunk_stride=1)
    weight = unflatten_axis(weight, label, (Chunk, Block))
    return _Blocks(Block, Chunk, weight, stride=1, chunk_stride=Block.size)


def _pick(logits: jax.Array, targets: jax.Array, classes: jax.Array) -> jax.Array:
    """Keep the logits of the targets, and set others to zero; the caller sums them.

    A comparison stays local where the classes are sharded, and needs no scatter in the backward pass; a gather does.
    """
    return primitives.where(primitives.equal(targets, classes), logits, 0)


def cross_entropy_loss_and_log_normalizers(
    logits: NamedArray, Label: AxisSelector, targets: NamedArray
) -> tuple[NamedArray, NamedArray]:
    """Return the `cross_entropy_loss` of each target, and the log-sum-exp of the logits.

    Use it to weight or to report the two separately, such as for a z-loss of your own.

    Args:
        logits: axes {Label, ...}.
        Label: the axis of classes.
        targets: class indices, axes {...}; or probabilities, axes {Label, ...}.

    Returns:
        Two arrays with the axes {...} of the logits without `Label`.

    Raises:
        AxisNotFoundError: if `logits` lacks `Label`, or one of the other axes of `targets`.
        OperandError: if targets without `Label` are not integers.

    Examples:
        >>> logits, target = axn.zeros({"vocab": 2}), axn.named(1, ())
        >>> loss, log_normalizer = axn.nn.cross_entropy_loss_and_log_normalizers(logits, "vocab", target)
        >>> loss.item(), log_normalizer.item()  # both log(2)
        (0.693..., 0.693...)
    """
    return _compute_losses(logits, Label, targets, 0.0, 0.0)


def _refuse_targets(
    function: str, logits: NamedArray, targets: NamedArray, name: str
) -> AxisNotFoundError:
    """Build the error for an axis of the targets that the logits lack: one of size 1, or one of another name."""
    size = targets.shape[name]
    alike = [own for own in logits.names if own not in targets.names and logits.shape[own] == size]
    hint = f'drop it: targets["{name}", 0]' if size == 1 else None
    if alike and hint is None:
        hint = f'if it is the same as {alike[0]!r}, rename it: targets.rename({{"{name}": "{alike[0]}"}})'
    problem = f"the targets have axis {name!r}, which the logits lack"
    lines = f"logits have: {facts(logits)}", f"targets have: {facts(targets)}"
    return AxisNotFoundError(message(function, problem, *lines, hint=hint))


def _compute_losses(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    label_smoothing: float,
    z_loss: Scalar,
) -> tuple[NamedArray, NamedArray]:
    """Return a loss for each target, and the log-sum-exp of the logits."""
    # Before the kernel is made: its errors would not know which of the operands is meant.
    function = "cross_entropy_loss"
    for x in (logits, targets):
        if not isinstance(x, Core):
            raise checks.no_names(function, x)
    label, size = selector(Label, function)
    checks.require(function, logits, Label, "logits")
    if label not in targets.names and not jnp.issubdtype(targets.dtype, jnp.integer):
        problem = f"the targets have dtype {targets.dtype} and lack axis {label!r}"
        hint = "class numbers must be integers, probabilities must have the axis of classes"
        lines = (f"logits have: {facts(logits)}", f"targets have: {facts(targets)}")
        raise OperandError(message(function, problem, *lines, hint=hint))
    label_smoothing = _check_smoothing(function, label_smoothing)
    for name in targets.names:
        if name not in logits.names:
            raise _refuse_targets(function, logits, targets, name)
    # It is static whether they count, but not how much: another factor compiles no other program.
    smooths, drifts = label_smoothing != 0, _is_used(z_loss)
    key = (logits.names, targets.names, (label, size), smooths, drifts)
    kernel = checks.run_plan(function, (logits, targets), _make_kernel, *key)
    if label not in targets.names:
        classes = axes_of(function, logits)[logits.names.index(label)]
        _report_targets(function, targets, label, classes.size)
    losses, normalizers = kernels.run(
        kernel.call, logits.array, targets.array, label_smoothing, z_loss
    )
    return wrap(logits, losses, kernel.names), wrap(logits, normalizers, kernel.names)


@share_by_renaming("names", "targets", "label")
def _make_kernel(
    names: Names, targets: Names, label: tuple[str, int | None], smooths: bool, drifts: bool
) -> kernels.Kernel:
    """Make the kernel of a cross entropy."""
    (at,) = plans.positions(names, (label[0],))
    plans.require(names, targets)
    soft = label[0] in targets
    result = plans.without(names, (label[0],))

    def compute(
        given: jax.Array, wanted: jax.Array, smoothing: Scalar, z_loss: Scalar
    ) -> tuple[jax.Array, jax.Array]:
        logits = widen(given)
        # Differences to the largest logit are exact where the logits themselves are large.
        # A gradient through the largest one would cancel in the result.
        largest = lax.stop_gradient(logits).max(at)
        # First the picked logits, then the exponentials, which are as large: one of the two is in memory at a time.
        is_class: jax.Array | None = None
        share: Scalar = 1
        if soft:
            largest = _make_finite(largest)
            share = wanted.sum(at)
            picked = ((logits - jnp.expand_dims(largest, at)) * wanted).sum(at)
            picked, largest = lax.optimization_barrier((picked, largest))
        else:
            wanted = wanted.astype(_choose_index_dtype(wanted))
            lowest = np.array(0, wanted.dtype)
            is_class = lax.bitwise_and(lax.ge(wanted, lowest), wanted < logits.shape[at])
            # Aligned with the logits, it has size 1 along the classes; a target without axes has no dimension.
            if is_class.ndim:
                is_class = lax.squeeze(is_class, (at,))
            classes = lax.broadcasted_iota(wanted.dtype, logits.shape, at % logits.ndim)
            own = _pick(logits, wanted, classes).sum(at)
            # The maximum stays the same, but the exponentials wait for it; not every compiler heeds a barrier here.
            same = lax.max(largest, lax.stop_gradient(own))
            largest = _make_finite(primitives.where(is_class, same, largest))
            picked = lax.sub(own, largest)

        above = lax.expand_dims(lax.stop_gradient(largest), (at,))
        shifted = primitives.subtract(logits, above)
        normalizers = lax.log(lax.exp(shifted).sum(at))
        if smooths:
            # The mean of the logits is the cross entropy with a uniform distribution.
            share = (1 - smoothing) * share + smoothing
            picked = (1 - smoothing) * picked + smoothing * shifted.mean(at)
        # `share` is the sum of the targets, which need not be one.
        if soft or smooths:
            entropy = normalizers * share - picked
        else:
            entropy = primitives.subtract(normalizers, picked)
        if is_class is not None:
            entropy = primitives.where(is_class, entropy, np.nan)
        normalizers = lax.add(normalizers, largest)

        if drifts:  # before the cast: the square may overflow float16, its weighted value less so
            entropy = entropy + z_loss * normalizers**2
        dtype = _choose_dtype(given.dtype)
        return entropy.astype(dtype), normalizers.astype(dtype)

    def body(
        logits: jax.Array, wanted: jax.Array, smoothing: Scalar, z_loss: Scalar
    ) -> tuple[jax.Array, jax.Array]:
        checks.check_sizes("cross_entropy_loss", (names, targets), (logits, wanted))
        checks.check_given("cross_entropy_loss", (label,), names, logits.shape)
        logits, wanted = kernels.align_layouts((names, targets), (logits, wanted), names)
        return compute(logits, kernels.line_up(wanted, targets, names), smoothing, z_loss)

    return kernels.Kernel(result, body)


def reduce_loss(
    losses: NamedArray,
    reduction: Reduction | None = mean,
    reduction_axis: AxisSelection | None = None,
    where: NamedArray | None = None,
) -> NamedArray:
    """Reduce the losses that count; without a reduction or axes to reduce, set the losses that do not count to zero.

    The mean of no losses is zero, and so are its gradients; `axn.mean` gives NaN.

    Args:
        losses: any axes.
        reduction: reduces the losses, such as `axn.mean` or `axn.sum`; None for none.
        reduction_axis: the axes to reduce; by default all.
        where: booleans that say which losses count, axes among those of `losses`.

    Returns:
        The axes of `losses` that are not reduced.

    Raises:
        OperandError: if `reduction` is not callable.

    Examples:
        >>> losses, where = axn.named([1.0, 2.0, 9.0], "pos"), axn.named([True, True, False], "pos")
        >>> axn.nn.reduce_loss(losses, where=where).item(), axn.nn.reduce_loss(losses, where=where & False).item()
        (1.5, 0.0)
    """
    return _reduce("reduce_loss", losses, reduction, reduction_axis, where)


def _reduce(
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
        return losses if where is None else select(where, losses, 0)
    result = reduction(losses, reduction_axis, where=where)
    if where is None or reduction is not mean:
        return result
    # A mean over no losses is NaN. `where` may have fewer axes than the losses.
    own = where.names
    if reduction_axis is not None:
        chosen = names_in(selection(reduction_axis, function))
        own = tuple(name for name in chosen if name in where.names)
    return select(reduce.any(where, own), result, 0)


def _combine_masks(
    function: str,
    label: str,
    targets: NamedArray,
    where: NamedArray | None,
    ignore_index: int | None,
) -> NamedArray | None:
    """Return booleans that say which targets count, those of `where` and `ignore_index` together."""
    if ignore_index is None:
        return where
    if not isinstance(targets, Core):
        raise checks.no_names(function, targets)
    if label in targets.names:
        problem = (
            f"ignore_index is a class number, but the targets are probabilities of axis {label!r}"
        )
        lines, hint = f"targets have: {facts(targets)}", "leave targets out by where=..."
        raise ArgumentError(message(function, problem, lines, hint=hint))

    counted = logical.not_equal(targets, ignore_index)
    if where is None:
        return counted
    return logical.logical_and(counted.broadcast_axis(where.axes), where)


def _report_targets(function: str, targets: NamedArray, label: str, size: int) -> None:
    """Report targets that are out of range, within `axonym.debug.checks`."""
    lines = f"targets have: {facts(targets)}"
    expect(function, "class", targets.array, 0, size - 1, lines, room=f"{label}={size}")


def _fill_excluded(targets: NamedArray, label: str, counted: NamedArray | None) -> NamedArray:
    """Replace targets that do not count by the first class, so that their losses are not NaN.

    NaN times zero would still be NaN in the gradients. Targets that are wrong stay as they are: later checks raise.
    """
    if (
        not isinstance(counted, Core)
        or not isinstance(targets, Core)
        or label in targets.names
        or not set(counted.names) <= set(targets.names)
        or not jnp.issubdtype(targets.dtype, jnp.integer)
    ):
        return targets
    return select(counted, targets, 0)


def _choose_index_dtype(classes: jax.Array | NamedArray) -> np.dtype[np.generic]:
    """Return a dtype that can hold the last class, as uint8 might not."""
    dtype: np.dtype[np.generic] = jnp.result_type(classes.dtype, jnp.int32)
    return dtype


def _make_finite(largest: jax.Array) -> jax.Array:
    """Return what to subtract from logits: an infinite maximum would give NaN, infinity minus infinity."""
    return primitives.where(lax.is_finite(largest), largest, 0)


def _choose_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the dtype of the losses: that of the logits, float32 for integers."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    wide: np.dtype[np.generic] = at_least_float32(dtype)
    return wide


def _is_used(factor: Scalar) -> bool:
    """Return whether a term counts; the value of a traced factor is unknown, so its term counts."""
    return not isinstance(factor, int | float) or factor != 0


def _check_smoothing(function: str, label_smoothing: float) -> float:
    return check_fraction(function, "label_smoothing", label_smoothing, "a fraction")


explain_calls(globals(), __all__)
