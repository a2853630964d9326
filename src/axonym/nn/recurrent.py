"""Recurrent cells, and the loop that runs one along a named axis."""

import math
from typing import Any, Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSelector, AxisSpec, sized
from ..create import zeros, zeros_like
from ..errors import OperandError, message
from ..kinds import type_text
from ..ops.elementwise import tanh
from ..partitioning.shard import auto_sharded
from ..transform.checkpoint import ScanCheckpointSpec
from ..transform.scan import scan
from .activation import sigmoid
from .initializer import Initializer, uniform
from .inputs import named_axis
from .layer import Layer
from .linear import Linear
from .settings import as_python
from .weights import made_if

__all__ = ["GRUCell", "LSTMCell", "Recurrent", "RecurrentCell"]


class RecurrentCell(Layer):
    """One step of a recurrence, split so that all work that needs no state is done before the loop.

    A subclass defines `project`, `advance`, `initial_state` and, unless a state is one array, `output`.
    """

    def project(self, x: NamedArray) -> NamedArray:
        """Return what a step needs of its input; axes of `x` that are not the input's stay."""
        raise NotImplementedError

    def advance(self, projected: NamedArray, state: Any) -> Any:
        """Return the next state for a projected input."""
        raise NotImplementedError

    def initial_state(self, projected: NamedArray) -> Any:
        """Return the initial state, zeros, for a projected input.

        `Recurrent` passes the axes and the dtype of one position, as a NamedArray of a `jax.ShapeDtypeStruct`.
        """
        raise NotImplementedError

    def output(self, state: Any) -> NamedArray:
        """Return the output of a state; by default the state."""
        output: NamedArray = state
        return output

    def __call__(self, x: NamedArray, state: Any = None, *, key: jax.Array | None = None) -> Any:
        """Return the next state.

        Args:
            x: the input of one step, axes {In, ...}.
            state: the previous state; by default zeros.
            key: not used; every layer takes one.
        """
        projected = self.project(x)
        if state is None:
            state = self.initial_state(projected)
        return self.advance(projected, state)


class _Gated(RecurrentCell):
    """The base of LSTM and GRU.

    The weights of all gates are one array with an axis `gate`, in the order of the formulas, so that a mapping of
    `Hidden` splits all gates alike.
    """

    input: Linear
    hidden: Linear

    def project(self, x: NamedArray) -> NamedArray:
        """Return the products of `x`, axes {In, ...}, with the input weights: {..., gate, Hidden}."""
        return self.input(x)


class LSTMCell(_Gated):
    """A step of a long short-term memory; the state is a pair of output h and memory c, axes {..., Hidden}.

    With gates i, f, g, o, each a sum of a bias and products with the input and the previous output:
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g), and h' = sigmoid(o) * tanh(c').

    Attributes:
        input: the input weights {In, gate, Hidden} and the bias {gate, Hidden}; gates are in the order i, f, g, o.
        hidden: the weights of the previous output, {Hidden, gate, Hidden as `<name>.out`}.

    Reference:
        Hochreiter, Schmidhuber (1997), Long short-term memory; Gers et al. (2000), Learning to forget.
    """

    @classmethod
    def init(
        cls,
        In: AxisSpec,
        Hidden: Axis,
        *,
        key: jax.Array,
        use_bias: bool = True,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a cell.

        Args:
            In: the axes of the input.
            Hidden: the axis of the state.
            key: for the weights; the bias starts at zero.
            use_bias: whether there is a bias.
            initializer: makes the weights; by default, uniform within one over the square root of the size of `Hidden`.
        """
        return cls(*_weights(4, In, sized(Hidden, "LSTMCell.init"), key, use_bias, initializer))

    def initial_state(self, projected: NamedArray) -> tuple[NamedArray, NamedArray]:
        """Return zeros for h and c."""
        h = _zeros(projected)
        return h, h

    def advance(
        self, projected: NamedArray, state: tuple[NamedArray, NamedArray]
    ) -> tuple[NamedArray, NamedArray]:
        """Return the next h and c."""
        if not isinstance(state, tuple | list) or len(state) != 2:
            given = type(state).__name__
            if isinstance(state, tuple | list):
                given = f"{len(state)} parts"
            hint = "leave it out to start from zeros, or give (h, c)"
            raise OperandError(
                message("LSTMCell", f"the state must be a pair of h and c, not {given}", hint=hint)
            )
        h, c = state
        gates = projected + self.hidden(h)
        i, f, g, o = (gates["gate", at] for at in range(4))
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def output(self, state: tuple[NamedArray, NamedArray]) -> NamedArray:
        """Return h."""
        return state[0]


class GRUCell(_Gated):
    """A step of a gated recurrent unit; the state h is its output, axes {..., Hidden}.

    With the gates r, z, n of the input and of the state: r = sigmoid(r_x + r_h), z = sigmoid(z_x + z_h),
    n = tanh(n_x + r * (n_h + b)), and h' = (1 - z) * n + z * h.

    Attributes:
        input: the input weights {In, gate, Hidden} and the bias {gate, Hidden}; gates are in the order r, z, n.
        hidden: the weights of the state, {Hidden, gate, Hidden as `<name>.out`}.
        bias: b, axes {Hidden}, or None.

    Reference:
        Cho et al. (2014), Learning phrase representations using RNN encoder-decoder; the reset gate acts on the
        product, as in cuDNN.
    """

    bias: NamedArray | None

    @classmethod
    def init(
        cls,
        In: AxisSpec,
        Hidden: Axis,
        *,
        key: jax.Array,
        use_bias: bool = True,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a cell; the arguments are those of `LSTMCell.init`."""
        Hidden = sized(Hidden, "GRUCell.init")
        weights = _weights(3, In, Hidden, key, use_bias, initializer)
        return cls(*weights, made_if(use_bias, zeros, Hidden))

    def initial_state(self, projected: NamedArray) -> NamedArray:
        """Return zeros for h."""
        return _zeros(projected)

    def advance(self, projected: NamedArray, state: NamedArray) -> NamedArray:
        """Return the next h."""
        products = self.hidden(state)
        r, z = (sigmoid(projected["gate", at] + products["gate", at]) for at in range(2))
        new = products["gate", 2]
        if self.bias is not None:
            new = new + auto_sharded(self.bias)
        n = tanh(projected["gate", 2] + r * new)
        return n + z * (state - n)


class Recurrent(Layer):
    """Run a cell along an axis.

    The products with the input are one product for all positions; only those with the state are in the compiled loop.

    Attributes:
        cell: the cell.
        axis: the axis to run along.
        reverse: whether to run from the last position to the first.
        unroll: the number of steps in one iteration of the compiled loop, as in `axn.scan`.
        remat: what to keep for the backward pass, as in `axn.scan`.

    Examples:
        >>> Time, Embed, Hidden = axn.make_axes(time=5, embed=3, hidden=4)
        >>> lstm = axn.nn.Recurrent(axn.nn.LSTMCell.init(Embed, Hidden, key=jax.random.key(0)), "time")
        >>> outputs, (h, c) = lstm(axn.ones((Time, Embed)))
        >>> outputs.axes, h.axes
        ((Axis(name='time', size=5), Axis(name='hidden', size=4)), (Axis(name='hidden', size=4),))
    """

    cell: RecurrentCell
    axis: AxisSelector = eqx.field(static=True)
    reverse: bool = eqx.field(static=True, default=False)
    unroll: int | bool = eqx.field(static=True, default=1, converter=as_python)
    remat: ScanCheckpointSpec = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if isinstance(self.cell, type) or not hasattr(self.cell, "advance"):
            problem = f"expected a RecurrentCell, got {type_text(self.cell)}"
            hint = "use LSTMCell, GRUCell or a subclass of RecurrentCell"
            if isinstance(self.cell, type):
                hint = f"make one: {self.cell.__name__}.init(...)"
            raise OperandError(message("Recurrent", problem, hint=hint))

    def __call__(
        self, x: NamedArray, state: Any = None, *, key: jax.Array | None = None
    ) -> tuple[NamedArray, Any]:
        """Return the outputs of all steps, with `axis` first, and the last state.

        With `reverse`, the last state is that of the first position. `cell.output` makes the last output of it, and the
        next call continues from it. Without positions, it is the initial state.

        Args:
            x: axes {axis, In, ...}.
            state: the state to start from; by default zeros.
            key: not used; every layer takes one.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if an axis has another size.
        """
        name = named_axis("Recurrent", x, self.axis)
        # Weights with another layout are gathered before the loop, not in each step.
        cell = auto_sharded(self.cell)
        projected = cell.project(x)
        if state is None:
            # Without positions, the sum has the axes of one position.
            state = cell.initial_state(
                jax.eval_shape(
                    lambda x: x[name, 0] if x.axis_size(name) else x.sum(name), projected
                )
            )
        # The cell is an argument of one step function, so that an eager loop is compiled once.
        options: dict[str, Any] = {
            "reverse": self.reverse,
            "unroll": self.unroll,
            "remat": self.remat,
        }
        loop = scan(_step, self.axis, is_scanned=((True, False), {}), **options)
        last, outputs = loop(state, projected, cell)
        return outputs, last


def _step(state: Any, projected: NamedArray, cell: Any) -> tuple[Any, NamedArray]:
    state = cell.advance(projected, state)
    return state, cell.output(state)


def _zeros(projected: NamedArray) -> NamedArray:
    """Make zeros like one of the gates, without slicing it."""
    gate: NamedArray = jax.eval_shape(lambda projected: projected["gate", 0], projected)
    return zeros_like(gate)


def _weights(
    gates: int,
    In: AxisSpec,
    Hidden: Axis,
    key: jax.Array,
    use_bias: bool,
    initializer: Initializer | None,
) -> tuple[Linear, Linear]:
    """Make the weights of input and state."""
    limit = 1 / math.sqrt(Hidden.size or 1)
    made = initializer or uniform(-limit, limit)
    Out = (Axis("gate", gates), Hidden)
    keys = tuple(jax.random.split(key))
    return (
        Linear.init(In, Out, key=keys[0], use_bias=use_bias, initializer=made),
        Linear.init(Hidden, Out, key=keys[1], use_bias=False, initializer=made),
    )
