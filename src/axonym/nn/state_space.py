"""Diagonal state-space layers: linear recurrences whose positions are computed in parallel.

Two steps of a linear recurrence compose to one step of the same form, so a scan in log2(positions) rounds replaces a
loop over positions.
"""

import math
from collections.abc import Sequence
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from .. import random
from ..array import NamedArray
from ..axis import Axis, AxisSelector, sized, without_axes
from ..base.dtypes import widen, widen_to
from ..engine import auto, pointwise, prefixes
from ..engine.core import Core, facts
from ..errors import ArgumentError, AxisClashError, message
from ..layout import explicit
from ..ops.elementwise import exp, imag, log, log1p, real
from ..ops.join import stack
from ..ops.where import where
from ..partitioning.shard import auto_sharded
from .initializer import normal
from .inputs import check_input, find_axis_name
from .layer import Layer, enter_scope
from .linear import Linear
from .weights import find_dtype, widen_layer

__all__ = ["DiagonalSSM"]

PARTS = Axis("complex", 2)
Pair = tuple[jax.Array, jax.Array]


class DiagonalSSM(Layer):
    """A linear recurrence with a complex state, whose elements each have a decay and a frequency.

    At each position, s' = a s + g B x and y = Re(C s') + d x, where a, g and d are diagonal. A call computes all
    positions at once, as `axn.associative_scan` does; `step` computes one, for decoding, with the same results.

    The state is complex64 or wider; the result has the dtype of a product of input and weights. The decay is sensitive
    to rounding: leave these parameters in float32 if others are narrower.

    Attributes:
        log_rate: log of -log |a|, axes {State}: |a| is below 1 for all values.
        log_phase: log of the angle of a, axes {State}.
        log_gain: log of g, axes {State}.
        input: B, real and imaginary part in the axis `complex`, axes {In, complex, State}.
        output: real part and negative imaginary part of C, axes {complex, State, In}.
        skip: d, axes {In}.
        axis: the axis to run along.
        In: the axis of the input, and of the result.
        State: the axis of the state.

    Examples:
        >>> Time, Embed, State = axn.make_axes(time=5, embed=3, state=4)
        >>> layer = axn.nn.DiagonalSSM.init("time", Embed, State, key=jax.random.key(0))
        >>> y, state = layer(axn.ones((Time, Embed)))
        >>> y.shape, state.shape, state.dtype
        ({'time': 5, 'embed': 3}, {'state': 4}, dtype('complex64'))

    Reference:
        Orvieto et al. (2023), Resurrecting recurrent neural networks for long sequences.
    """

    log_rate: NamedArray
    log_phase: NamedArray
    log_gain: NamedArray
    input: Linear
    output: Linear
    skip: NamedArray
    axis: AxisSelector = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    State: Axis = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        axis: AxisSelector,
        In: Axis,
        State: Axis,
        *,
        key: jax.Array,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
    ) -> Self:
        """Make a layer, with a uniform in a ring of the complex plane, and a gain that keeps the input's variance.

        Args:
            axis: the axis to run along.
            In: the axis of the input, and of the result.
            State: the axis of the state.
            key: for all parameters.
            r_min: the smallest |a|.
            r_max: the largest |a|; near 1 for long memories.
            max_phase: the largest angle of a.

        Raises:
            ArgumentError: unless 0 <= r_min < r_max <= 1 and max_phase > 0.
        """
        if not 0 <= r_min < r_max <= 1 or max_phase <= 0:
            problem = f"decays need 0 <= r_min < r_max <= 1 and max_phase > 0, got {r_min}, {r_max} and {max_phase}"
            raise ArgumentError(message("DiagonalSSM.init", problem))
        In, State = sized(In, "DiagonalSSM.init"), sized(State, "DiagonalSSM.init")
        keys = tuple(jax.random.split(key, 5))
        # |a|^2 is uniform, so that a is uniform in the area of the ring. The bounds stay out, where logarithms are
        # infinite.
        share = random.uniform(keys[0], State, minval=1e-6, maxval=1 - 1e-6)
        squared = share * (r_max**2 - r_min**2) + r_min**2
        # This is 1 - squared, which near 1 would be rounded to a few numbers, zero among them.
        decrease = (1 - share) * (r_max**2 - r_min**2) + (1 - r_max**2)
        phase = random.uniform(keys[1], State, minval=1e-6, maxval=1.0) * max_phase
        into = normal(1 / math.sqrt(2 * max(In.size, 1)))
        out = normal(1 / math.sqrt(max(State.size, 1)))
        # The rate is -log|a|. A logarithm of |a|^2 near 1 would lose digits, which `log1p` keeps.
        return cls(
            log_rate=log(-0.5 * where(squared < 0.5, log(squared), log1p(-decrease))),
            log_phase=log(phase),
            log_gain=0.5 * log(decrease),
            input=Linear.init(In, (PARTS, State), key=keys[2], use_bias=False, initializer=into),
            output=Linear.init((PARTS, State), In, key=keys[3], use_bias=False, initializer=out),
            skip=random.normal(keys[4], In),
            axis=axis,
            In=In,
            State=State,
        )

    def __call__(
        self, x: NamedArray, state: NamedArray | None = None, *, key: jax.Array | None = None
    ) -> tuple[NamedArray, NamedArray]:
        """Compute all positions.

        Args:
            x: axes {axis, In, ...}.
            state: the state to start from, axes {State, ...}, complex; by default zeros.
            key: not used; every layer takes one.

        Returns:
            The results, axes {axis, In, ...}, and the last state, axes {State, ...}; that is the initial one if there
            are no positions.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if an axis has another size.
            AxisClashError: if `state` has the axis to run along.
        """
        name = find_axis_name("DiagonalSSM", x, self.axis)
        drive = self._drive(x)
        if isinstance(state, Core):
            if name in state.names:
                problem = f"the state has axis {name!r}, which the layer runs along"
                hint = f"start from the state of one position: state[{name!r}, -1]"
                raise AxisClashError(
                    message("DiagonalSSM", problem, f"state has: {facts(state)}", hint=hint)
                )
            # The states have all axes of both, and the scan runs over an array of this shape.
            drive = drive.broadcast_axis(without_axes(state.axes, drive.names))
        at = drive.names.index(name) - len(drive.names)
        start = () if state is None else (state,)
        _, parts = prefixes.find_parts(drive.array, drive.array.ndim + at, name)
        states = pointwise.nary(_run, drive, self._decay(), *start, at=at, parts=parts)

        if x.axis_size(self.axis):
            last = states[name, -1]
        else:
            # The sum over no positions is zero, and has the axes of a state.
            last = states.sum(name) if state is None else states.sum(name) + state
        return self._compute_output(states, x), last

    @enter_scope
    def step(self, x: NamedArray, state: NamedArray | None = None) -> tuple[NamedArray, NamedArray]:
        """Compute one position, as a decoder does.

        Args:
            x: axes {In, ...}.
            state: the previous state, axes {State, ...}, complex; by default zeros.

        Returns:
            The result, axes {In, ...}, and the next state, axes {State, ...}.

        Examples:
            >>> Embed, State = axn.make_axes(embed=3, state=4)
            >>> layer = axn.nn.DiagonalSSM.init("time", Embed, State, key=jax.random.key(0))
            >>> y, state = layer.step(axn.ones(Embed))
            >>> y, state = layer.step(axn.ones(Embed), state)
        """
        following = self._drive(x)
        if state is not None:
            following = following + self._decay() * state
        return self._compute_output(following, x), following

    def _decay(self) -> NamedArray:
        """Return a, complex, axes {State}."""
        rate = exp(widen(auto_sharded(self.log_rate)))
        phase = exp(widen(auto_sharded(self.log_phase)))
        return pointwise.binary(_polar, exp(-rate), phase)

    def _drive(self, x: NamedArray) -> NamedArray:
        """Return g B x, complex, axes {..., State}."""
        check_input("DiagonalSSM", x, (self.In,), (self.State, PARTS))
        parts = widen(self.input(x))
        return pointwise.nary(_scale, *parts.unbind(PARTS), exp(widen(auto_sharded(self.log_gain))))

    def _compute_output(self, states: NamedArray, x: NamedArray) -> NamedArray:
        """Return Re(C s) + d x, axes {..., In}."""
        # The real part of a complex product is one real product over both parts: the weights hold the sign.
        parts = stack(PARTS, [real(states), imag(states)])
        skipped = widen_to(parts.dtype, x * auto_sharded(self.skip))
        y = widen_layer(self.output, parts.dtype)(parts) + skipped
        result: NamedArray = y.astype(jnp.result_type(x.dtype, find_dtype(self.input)))
        return result


def _scale(real: jax.Array, imaginary: jax.Array, gain: jax.Array) -> jax.Array:
    return lax.complex(real * gain, imaginary * gain)


def _polar(size: jax.Array, angle: jax.Array) -> jax.Array:
    return lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


def _run(drive: jax.Array, decay: jax.Array, *start: jax.Array, at: int, parts: int) -> jax.Array:
    """Run the recurrence along a dimension, from zero or from a state.

    Args:
        drive: the input of each step.
        decay: the factor of each step, of the shape of its last dimensions.
        start: the state to start from, if there is one.
        at: the dimension, counted from the end.
        parts: how many devices share it.
    """

    def states(drive: jax.Array, decay: jax.Array, *start: jax.Array) -> jax.Array:
        # Powers of the decay keep size 1 where it lacks axes of the input. In each round of the scan, they are computed
        # once for all rows of a batch.
        shape = [1] * (drive.ndim - decay.ndim) + list(decay.shape)
        shape[at] = drive.shape[at]
        elements = (jnp.broadcast_to(decay, shape), drive)
        # Where devices share the dimension, each scans its own part, and only the last elements are exchanged.
        if parts == 1:
            powers, reached = _scan(elements, at)
        else:
            powers, reached = prefixes.scan_parts(_scan, _compose, elements, at + drive.ndim, parts)
        # The recurrence is linear, so a state to start from adds its decayed value to each position.
        return reached + powers * start[0] if start else reached

    if parts == 1:
        drive = auto.whole(drive, (at,))
    return auto.move_elements(states, [drive, decay, *start], explicit.get_layout(drive))


def _scan(elements: Sequence[jax.Array], at: int) -> Sequence[jax.Array]:
    scanned: Sequence[jax.Array] = lax.associative_scan(_compose, tuple(elements), axis=at)
    return scanned


def _compose(first: Sequence[jax.Array], second: Sequence[jax.Array]) -> Pair:
    """Compose two steps s -> a s + b."""
    return first[0] * second[0], second[0] * first[1] + second[1]
