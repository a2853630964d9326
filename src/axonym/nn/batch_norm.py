"""Batch normalisation. A module cannot change, so the running statistics are an argument and a result of each call."""

import math
from typing import Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSelection, AxisSpec, axis_name, names_in, selection, shown, spec
from ..base.dtypes import widen, widen_to
from ..create import ones, zeros
from ..engine import checks
from ..engine.core import facts
from ..errors import AxisClashError, AxisError, AxisSizeError, OperandError, message
from ..layout import context
from ..names import plans
from ..ops.elementwise import rsqrt, square, stop_gradient
from ..partitioning.addresses import count_devices, find_mesh_axes
from ..partitioning.collectives import pmean
from ..partitioning.shard import auto_sharded
from .inputs import check_input, list_sized_axes
from .layer import Layer
from .recompute import from_inputs
from .switch import switchable
from .weights import make_if

__all__ = ["BatchNorm", "BatchNormState"]


class BatchNormState(Layer):
    """Running statistics of a `BatchNorm`, apart from its parameters: optimizers must not change them.

    Attributes:
        mean: axes {axis}.
        var: the variance, axes {axis}.

    Examples:
        >>> axn.nn.BatchNorm.init(axn.Axis("channels", 3), "batch").initial_state().var.tolist()
        [1.0, 1.0, 1.0]
    """

    mean: NamedArray
    var: NamedArray


@switchable
class BatchNorm(Layer):
    """Normalise over the axes `over` of a batch: subtract the mean, divide by the standard deviation.

    Training uses the statistics of the batch and updates the running ones; `inference` uses the running ones unchanged.
    Inside a `shard_map` that splits an axis of `over`, the statistics are those of the global batch.

    The layer computes in float32 or wider, and returns the dtype of its input.

    Attributes:
        axis: the axes with separate statistics at each position, such as channels.
        over: the names of the axes to normalise over, such as batch, height and width.
        weight: axes {axis}, or None.
        bias: axes {axis}, or None.
        eps: added to the variance before the square root.
        momentum: the weight of a new batch in the running statistics; the old value has one minus that.
        inference: whether to use the running statistics; `__call__` can override it, and `eqx.nn.inference_mode`
            switch it.
        fixed: those of `over` that were given as `Axis`, whose sizes inputs must have.

    Reference:
        Ioffe, Szegedy (2015), Batch normalization: accelerating deep network training by reducing internal covariate
        shift.

    Examples:
        >>> Batch, Channels = axn.make_axes(batch=4, channels=3)
        >>> norm = axn.nn.BatchNorm.init(Channels, "batch")
        >>> y, state = norm(axn.random.normal(jax.random.key(0), (Batch, Channels)), norm.initial_state())
        >>> bool(abs(y.mean("batch")).max() < 1e-6), state.mean.axes
        (True, (Axis(name='channels', size=3),))
    """

    axis: tuple[Axis, ...] = eqx.field(static=True)
    over: tuple[str, ...] = eqx.field(static=True)
    weight: NamedArray | None
    bias: NamedArray | None
    eps: float = eqx.field(static=True, default=1e-5)
    momentum: float = eqx.field(static=True, default=0.1)
    inference: bool = False
    fixed: tuple[Axis, ...] = eqx.field(static=True, default=())

    @classmethod
    def init(
        cls,
        axis: AxisSpec,
        over: AxisSelection,
        eps: float = 1e-5,
        momentum: float = 0.1,
        *,
        use_weight: bool = True,
        use_bias: bool = True,
        inference: bool = False,
    ) -> Self:
        """Make a layer; weights start at one and biases at zero.

        Args:
            axis: the axes with separate statistics at each position.
            over: the axes to normalise over: with `axis`, all axes of the input. Inputs must have the size of one given
                as `Axis`; give a name where sizes vary.
            eps: added to the variance before the square root.
            momentum: the weight of a new batch in the running statistics.
            use_weight: whether to multiply by a learned weight.
            use_bias: whether to add a learned bias.
            inference: whether to use the running statistics.

        Raises:
            AxisClashError: if an axis is given twice.
            OperandError: if there is nothing to normalise over.
        """
        axes, given = spec(axis, "BatchNorm.init"), selection(over, "BatchNorm.init")
        names = names_in(given)
        if not names:
            raise OperandError(message("BatchNorm.init", "there is no axis to normalise over"))
        # Not `plans.distinct`, whose error would not say that the two arguments exclude each other.
        for each in axes:
            if each.name in names:
                problem = f"axis {each.name!r} is both kept and normalised over"
                raise AxisClashError(message("BatchNorm.init", problem))
        weight = make_if(use_weight, ones, axes)
        bias = make_if(use_bias, zeros, axes)
        fixed, eps, momentum = list_sized_axes(given), float(eps), float(momentum)
        return cls(axes, names, weight, bias, eps, momentum, inference, fixed)

    def initial_state(self) -> BatchNormState:
        """Return the running statistics before training: mean zero and variance one, axes {axis}."""
        return BatchNormState(zeros(self.axis), ones(self.axis))

    def __call__(
        self,
        x: NamedArray,
        state: BatchNormState | None = None,
        *,
        inference: bool | None = None,
        key: jax.Array | None = None,
    ) -> tuple[NamedArray, BatchNormState]:
        """Normalise `x`, and update the running statistics.

        As in other libraries, the batch is divided by its biased standard deviation, while the running variance takes
        in the unbiased variance.

        Args:
            x: axes {*axis, *over}, no others.
            state: the running statistics. It has a default only so that calls without it raise with a hint.
            inference: whether to use the running statistics; by default what the field `inference` says.
            key: not used; every layer takes one.

        Returns:
            The result with the axes of `x`, and the next running statistics, which pass no gradient.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if an axis has another size, or training would average fewer than two elements.
            AxisError: if `x` has an axis that is neither in `axis` nor in `over`, or an anonymous dimension.
            OperandError: without a state.
        """
        self._check(x)
        if state is None:
            problem = "the running statistics are missing, which are an argument and a result"
            hint = "y, state = norm(x, state), at first with state = norm.initial_state()"
            raise OperandError(message("BatchNorm", problem, hint=hint))
        # Outside of `from_inputs`, which would gather them again in the backward pass.
        weight, bias = auto_sharded((self.weight, self.bias))
        if self.inference if inference is None else inference:
            running = auto_sharded(state)
            statistics = running.mean, running.var
            y = from_inputs(_scale_and_shift)(x, *statistics, weight, bias, eps=self.eps)
            return y, state

        # Inside of a shard_map, `x` is a block: the mapping says which axes have more elements on other devices.
        sizes = {name: x.axis_size(name) for name in self.over}
        split = [name for name, entry in context.map_names(sizes).items() if entry]
        over = find_mesh_axes("BatchNorm", split, (), meaning="arrays")
        count = math.prod(sizes.values()) * count_devices(over)
        if count < 2:  # the unbiased variance would divide by zero
            problem = f"a variance needs more than {count} element"
            hint = "pass inference=True to use the running statistics"
            raise AxisSizeError(message("BatchNorm", problem, f"input has: {facts(x)}", hint=hint))

        def normalize(
            x: NamedArray, weight: NamedArray | None, bias: NamedArray | None
        ) -> tuple[NamedArray, BatchNormState]:
            wide = widen(x)
            mean = pmean(wide.mean(self.over), over=over)
            # In two passes: the mean of squares less the squared mean would cancel where the mean is large.
            var = pmean(square(wide - mean).mean(self.over), over=over)
            y = _scale_and_shift(x, mean, var, weight, bias, eps=self.eps)
            return y, BatchNormState(mean, var)

        y, batch = from_inputs(normalize)(x, weight, bias)
        unbiased = batch.var * (count / (count - 1))
        mean, var = self._update(state.mean, batch.mean), self._update(state.var, unbiased)
        return y, BatchNormState(mean, var)

    def _update(self, old: NamedArray, new: NamedArray) -> NamedArray:
        """Move a running statistic towards that of a batch; as a carry of a scan, it keeps dtype, order and layout."""
        moved = old + (stop_gradient(new) - old) * self.momentum
        return auto_sharded(moved.astype(old.dtype).rearrange(old.names))

    def _check(self, x: NamedArray) -> None:
        """Check that `x` has the axes of the layer, and no others: their statistics would silently be separate."""
        check_input("BatchNorm", x, (*self.axis, *self.fixed), (), blocks=True)
        checks.run_plan("BatchNorm", (x,), plans.require, x.names, self.over)

        extra = plans.without(x.names, (*axis_name(self.axis), *self.over))
        if extra or x.ndim > len(x.names):
            what = f"axis {extra[0]!r}" if extra else "a dimension without name"
            problem = f"the input has {what}, which the layer neither keeps statistics of nor normalises over"
            lines = (f"keeps: {shown(*self.axis)}", f"normalises over: {', '.join(self.over)}")
            raise AxisError(message("BatchNorm", problem, f"input has: {facts(x)}", *lines))


def _scale_and_shift(
    x: NamedArray,
    mean: NamedArray,
    var: NamedArray,
    weight: NamedArray | None,
    bias: NamedArray | None,
    *,
    eps: float,
) -> NamedArray:
    """Subtract the mean, divide by the standard deviation, multiply by the weight and add the bias."""
    # The weight goes into the scale, which is much smaller than `x`: one product per element instead of two.
    scale = rsqrt(widen(var) + eps)
    if weight is not None:
        scale = scale * widen_to(scale.dtype, weight)

    y = (widen(x) - mean) * scale
    if bias is not None:
        y = y + widen_to(y.dtype, bias)
    return y.astype(x.dtype)
