"""Recurrent cells, and the loop that runs one along a named axis.

A cell is one step: from an input and a state to the next state. `Recurrent` runs it along an axis, and computes all
products with inputs before the loop, since a single large product is faster than one in each step.
"""

import math
from typing import Any, Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSelector, AxisSpec, sized
from ..base.kinds import type_text
from ..create import zeros, zeros_like
from ..errors import OperandError, message
from ..ops.elementwise import tanh
from ..partitioning.shard import auto_sharded
from ..transform.checkpoint import ScanCheckpointSpec
from ..transform.scan import scan
from .activation import sigmoid
from .initializer import Initializer, uniform
from .inputs import find_axis_name
from .layer import Layer
from .linear import Linear
from .settings import as_python
from .weights import add_bias, make_if

__all__ = ["GRUCell", "LSTMCell", "Recurrent", "RecurrentCell"]


class RecurrentCell(Layer):
    """One step of a recurrence, split so that the loop runs only the work that needs the state.

    A subclass defines `project`, `advance`, `initial_state` and, unless a state is one array, `output`.

    Examples:
        >>> class Average(axn.nn.RecurrentCell):
        ...     def project(self, x):
        ...         return 0.5 * x
        ...     def advance(self, projected, state):
        ...         return 0.5 * state + projected
        ...     def initial_state(self, projected):
        ...         return axn.zeros_like(projected)
        >>> outputs, last = axn.nn.Recurrent(Average(), "time")(axn.ones({"time": 3}))
        >>> outputs.tolist()
        [0.5, 0.75, 0.875]
    """

    def project(self, x: NamedArray) -> NamedArray:
        """Compute what a step needs of its input, for all positions at once.

        Args:
            x: axes {*In, ...}.

        Returns:
            Axes {...} and further ones of the cell, such as gates.
        """
        raise NotImplementedError

    def advance(self, projected: NamedArray, state: Any) -> Any:
        """Compute the next state.

        Args:
            projected: the result of `project` for one position.
            state: the previous state, an array or a tree of arrays.

        Returns:
            A tree like `state`.
        """
        raise NotImplementedError

    def initial_state(self, projected: NamedArray) -> Any:
        """Make the initial state, zeros.

        Args:
            projected: the axes and the dtype of `project` for one position, as a NamedArray of a
                `jax.ShapeDtypeStruct`.
        """
        raise NotImplementedError

    def output(self, state: Any) -> NamedArray:
        """Return the output of a state; by default the state itself."""
        result: NamedArray = state
        return result

    def __call__(self, x: NamedArray, state: Any = None, *, key: jax.Array | None = None) -> Any:
        """Return the next state.

        Args:
            x: the input of one step, axes {*In, ...}.
            state: the previous state; by default zeros.
            key: not used; every layer takes one.
        """
        projected = self.project(x)
        return self.advance(projected, self.initial_state(projected) if state is None else state)


class _Gated(RecurrentCell):
    """The base of LSTM and GRU.

    The weights of all gates are one array with an axis `gate`, in the order of the formulas, so that a mapping of
    `Hidden` splits all gates alike.
    """

    input: Linear
    hidden: Linear

    def project(self, x: NamedArray) -> NamedArray:
        """Multiply `x`, axes {*In, ...}, by the input weights; the result has axes {..., gate, Hidden}."""
        return self.input(x)


class LSTMCell(_Gated):
    """A step of a long short-term memory; the state is a pair of output h and memory c, axes {..., Hidden}.

    The gates i, f, g, o are each the sum of a bias and of products with the input and the previous output. A step
    computes c' = sigmoid(f) * c + sigmoid(i) * tanh(g), and h' = sigmoid(o) * tanh(c').

    Attributes:
        input: the input weights {In, gate, Hidden} and the bias {gate, Hidden}; gates are in the order i, f, g, o.
        hidden: the weights of the previous output, {Hidden, gate, Hidden as `<name>.out`}.

    Examples:
        >>> Embed, Hidden = axn.make_axes(embed=3, hidden=4)
        >>> cell = axn.nn.LSTMCell.init(Embed, Hidden, key=jax.random.key(0))
        >>> h, c = cell(axn.ones({"batch": 2, "embed": 3}))
        >>> h.shape
        {'batch': 2, 'hidden': 4}

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
        """Make zeros for h and c, axes {..., Hidden}."""
        h = _zeros(projected)
        return h, h

    def advance(
        self, projected: NamedArray, state: tuple[NamedArray, NamedArray]
    ) -> tuple[NamedArray, NamedArray]:
        """Compute the next h and c.

        Args:
            projected: axes {..., gate, Hidden}.
            state: the previous h and c, axes {..., Hidden}.

        Raises:
            OperandError: if the state is not a pair.
        """
        is_sequence = isinstance(state, tuple | list)
        if not is_sequence or len(state) != 2:
            given = f"{len(state)} parts" if is_sequence else type(state).__name__
            hint = "leave it out to start from zeros, or give (h, c)"
            raise OperandError(
                message("LSTMCell", f"the state must be a pair of h and c, not {given}", hint=hint)
            )
        h, c = state
        # One product for all gates; a product for each would read the state four times.
        gates = projected + self.hidden(h)
        i, f, g, o = (gates["gate", at] for at in range(4))
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def output(self, state: tuple[NamedArray, NamedArray]) -> NamedArray:
        """Return h."""
        return state[0]


class GRUCell(_Gated):
    """A step of a gated recurrent unit; the state h is its output, axes {..., Hidden}.

    The input and the state have gates r, z, n each. A step computes r = sigmoid(r_x + r_h), z = sigmoid(z_x + z_h),
    n = tanh(n_x + r * (n_h + b)), and h' = (1 - z) * n + z * h.

    Attributes:
        input: the input weights {In, gate, Hidden} and the bias {gate, Hidden}; gates are in the order r, z, n.
        hidden: the weights of the state, {Hidden, gate, Hidden as `<name>.out`}.
        bias: b, axes {Hidden}, or None.

    Examples:
        >>> Embed, Hidden = axn.make_axes(embed=3, hidden=4)
        >>> cell = axn.nn.GRUCell.init(Embed, Hidden, key=jax.random.key(0))
        >>> cell(axn.ones({"batch": 2, "embed": 3})).shape
        {'batch': 2, 'hidden': 4}

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
        return cls(*weights, make_if(use_bias, zeros, Hidden))

    def initial_state(self, projected: NamedArray) -> NamedArray:
        """Make zeros for h, axes {..., Hidden}."""
        return _zeros(projected)

    def advance(self, projected: NamedArray, state: NamedArray) -> NamedArray:
        """Compute the next h.

        Args:
            projected: axes {..., gate, Hidden}.
            state: the previous h, axes {..., Hidden}.
        """
        # The input's part of n is not multiplied by r, so both parts stay apart until then.
        products = self.hidden(state)
        r, z = (sigmoid(projected["gate", at] + products["gate", at]) for at in range(2))
        new = add_bias(products["gate", 2], self.bias)
        n = tanh(projected["gate", 2] + r * new)
        # This is (1 - z) * n + z * h with one product less.
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
        """Run the cell along the axis.

        Args:
            x: axes {axis, *In, ...}.
            state: the state to start from; by default zeros.
            key: not used; every layer takes one.

        Returns:
            The outputs of all steps, with `axis` first, and the last state, from which the next call can continue. The
            last state is that of the first position with `reverse`, and the initial one if there are no positions.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if an axis has another size.
        """
        name = find_axis_name("Recurrent", x, self.axis)
        # Weights that are stored in another layout are gathered here, before the loop, not in each step.
        cell = auto_sharded(self.cell)
        projected = cell.project(x)
        if state is None:
            # A sum over no positions has the axes of one position, as an index would give.
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
    """Make the weights of input and state; one bias for both is enough, since they are added."""
    limit = 1 / math.sqrt(Hidden.size or 1)
    initializer = initializer or uniform(-limit, limit)
    Out = (Axis("gate", gates), Hidden)
    keys = tuple(jax.random.split(key))
    return (
        Linear.init(In, Out, key=keys[0], use_bias=use_bias, initializer=initializer),
        Linear.init(Hidden, Out, key=keys[1], use_bias=False, initializer=initializer),
    )
