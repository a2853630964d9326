"""Internal. A function and its arguments, as a function of flat arrays with paths and names.

All claims begin here: this module knows what a function is (a model, a method, a jitted function), which arrays it
takes, and which of them have an axis. It knows nothing of claims.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..array import NamedArray, is_named_array
from ..base.kinds import Payload, Tree, has_type, type_text
from ..engine.core import payload_of
from ..engine.operands import own_names
from ..errors import (
    ArgumentError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ..layout.assignment import path_text
from ..names.plans import Names
from ..partitioning.blocks import axis_mapping
from ..partitioning.jit import NamedJit

Arrays = list[Payload]


class Place(NamedTuple):
    """An array among the arguments or results.

    Attributes:
        path: its path in the tree.
        names: the names of its trailing dimensions.
        is_held: whether the function itself holds it, as a model holds its parameters.
    """

    path: str
    names: Names
    is_held: bool

    def find_dimension(self, name: str, array: Payload) -> int:
        """Return the dimension of an axis."""
        return len(np.shape(array)) - len(self.names) + self.names.index(name)


class Program:
    """A function of flat arrays.

    Args:
        function: what the user called, for errors.
        f: the function; if it is a tree, such as a module or its method, its arrays are inputs too.
        args: its arguments, any trees.

    Attributes:
        places: of the inputs.
        arrays: the inputs.
        results: the places of the results; known after the first call.

    Raises:
        OperandError: if there is no function.
    """

    def __init__(self, function: str, f: Callable[..., Any], args: Sequence[Tree]) -> None:
        if not callable(f):
            problem = f"the first argument must be a function or a module, not {type_text(f)}"
            raise OperandError(
                message(function, problem, hint=f"{function}(function, *its_arguments)")
            )
        leaves, self._structure = jax.tree.flatten((f, tuple(args)), is_leaf=is_named_array)
        paths = jax.tree.leaves_with_path((f, tuple(args)), is_leaf=is_named_array)
        self.function, self.f, self.args = function, f, tuple(args)
        self._leaves = leaves
        self._at = [i for i, leaf in enumerate(leaves) if has_type(payload_of(leaf))]
        self.arrays: Arrays = [payload_of(leaves[i]) for i in self._at]
        self.places = [
            Place(path_text(paths[i][0][1:]), own_names(leaves[i]), paths[i][0][0].idx == 0)
            for i in self._at
        ]
        self.results: list[Place] = []
        self._compiled = jax.jit(self.run)

    def __call__(self, arrays: Arrays) -> Arrays:
        """Run the function, compiled."""
        found: Arrays = self._compiled(arrays)
        return found

    def run(self, arrays: Arrays) -> Arrays:
        """Run the function as it is."""
        f, args = self.fill(arrays)
        return self._list(f(*args))

    def run_unwrapped(self, arrays: Arrays) -> Arrays:
        """Run the function without the `jit` around it, which may have cached a trace without names of layers."""
        return self._list(self.call_unwrapped(arrays))

    def call_unwrapped(self, arrays: Arrays) -> Any:
        """Return what `run_unwrapped` lists."""
        f: Any
        f, args = self.fill(arrays)
        with contextlib.ExitStack() as mappings:
            while isinstance(f, _JITS):
                if isinstance(f, NamedJit) and f.roles.inside is not None:
                    mappings.enter_context(axis_mapping(f.roles.inside))
                f = f.__wrapped__
            return f(*args)

    def fill(self, arrays: Arrays) -> tuple[Callable[..., Any], tuple[Tree, ...]]:
        """Return the function and its arguments with other arrays."""
        leaves = list(self._leaves)
        for i, array in zip(self._at, arrays, strict=True):
            old = leaves[i]
            leaves[i] = NamedArray(array, old.names) if is_named_array(old) else array
        f, args = jax.tree.unflatten(self._structure, leaves)
        return f, args

    def _list(self, result: Tree) -> Arrays:
        found = [
            (path_text(path), own_names(leaf), payload_of(leaf))
            for path, leaf in jax.tree.leaves_with_path(result, is_leaf=is_named_array)
            if has_type(payload_of(leaf))
        ]
        self.results = [Place(path, names, False) for path, names, _ in found]
        return [array for _, _, array in found]

    def carriers(self, axis: str, *, with_held: bool = False) -> list[int]:
        """Return the numbers of the inputs that have an axis and content that can change.

        Args:
            axis: the name.
            with_held: whether to return also the inputs that the function holds.

        Raises:
            AxisNotFoundError: if there is none.
        """
        found = [
            i
            for i, place in enumerate(self.places)
            if axis in place.names and (with_held or not place.is_held)
        ]
        if not found:
            known = {name for place in self.places for name in place.names}
            have = "; ".join(
                f"{place.path or 'function'} has {', '.join(place.names)}"
                for place in self.places
                if place.names and not place.is_held
            )
            hint = suggestion(axis, known) or "give arguments whose axes have names"
            problem = f"no argument has axis {axis!r}"
            facts = (have,) if have else ()
            raise AxisNotFoundError(message(self.function, problem, *facts, hint=hint))
        return found

    def size_of(self, axis: str, carriers: Iterable[int]) -> int:
        """Return the size of an axis, which must be the same in all inputs, and at least two."""
        sizes = {
            np.shape(self.arrays[i])[self.places[i].find_dimension(axis, self.arrays[i])]
            for i in carriers
        }
        if len(sizes) > 1:
            listed = ", ".join(map(str, sorted(sizes)))
            raise AxisSizeError(
                message(
                    self.function, f"axis {axis!r} has several sizes among the arguments: {listed}"
                )
            )
        (size,) = sizes
        if size < 2:
            problem = f"axis {axis!r} has size {size}, so that nothing can be compared along it"
            raise AxisSizeError(message(self.function, problem, hint="take at least two"))
        return int(size)

    def find_parameters(self, results: Iterable[Place]) -> dict[str, str]:
        """Return the gradients or updates among results, each with the path of its parameter."""
        # Data may come back under its name, too, and is no parameter.
        models = {str(i) for i, arg in enumerate(self.args) if _has_module(arg)}
        inputs: dict[tuple[str, Names], str] = {}
        for place in self.places:
            number, _, rest = place.path.partition(".")
            if place.is_held or number in models:
                inputs[place.path if place.is_held else rest, place.names] = place.path
        found: dict[str, str] = {}
        for place in results:
            # Results have names of their own in front, such as "gradients".
            parts = place.path.split(".")
            keys = [(".".join(parts[i:]), place.names) for i in range(len(parts))]
            own = next((inputs[key] for key in keys if key in inputs), None)
            if own and place.names and place.path:
                found[place.path] = own
        return found

    def results_with(self, axis: str) -> list[int]:
        """Return the numbers of the results that have an axis.

        Raises:
            AxisNotFoundError: if none has it.
        """
        found = [i for i, place in enumerate(self.results) if axis in place.names]
        if not found:
            have = "; ".join(
                f"{place.path or 'the result'} has {', '.join(place.names) or 'no axes'}"
                for place in self.results
            )
            hint = "claim something of an axis that results have"
            if self.function == "assert_causal":
                hint = "if it has another name there, say so: out=..."
            problem = f"no result has axis {axis!r}"
            raise AxisNotFoundError(message(self.function, problem, have, hint=hint))
        return found


# A seed that users do not take: the same numbers would be no change.
_SEED = 6_803_111_957


def is_float(array: Payload) -> bool:
    """Return whether an array has a gradient."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def is_key(array: Payload) -> bool:
    """Return whether an array is one of random keys."""
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def is_old_key(array: Payload) -> bool:
    """Return whether an array may be a key as `jax.random.PRNGKey` makes it."""
    return bool(array.dtype == np.uint32) and array.shape == (2,)


def check_where(function: str, where: Any, axis: str) -> NamedArray:
    """Check a mask: booleans with an axis."""
    if not isinstance(where, NamedArray):
        problem = f"where must be a named array of booleans, got {type_text(where)}"
        raise OperandError(message(function, problem))
    if where.dtype != bool:
        problem = f"where must be booleans, not {where.dtype}"
        raise OperandError(message(function, problem))
    if axis not in where.names:
        have = f"where has: {describe(where.names, where.array.shape)}"
        raise AxisNotFoundError(message(function, f"where lacks axis {axis!r}", have))
    return where


@dataclasses.dataclass(frozen=True)
class Fresh:
    """New content for arrays: normally distributed floats of about the same size, and integers in the same range.

    Attributes:
        arrays: new content for each input; the same object for an input without new content.
    """

    arrays: Arrays

    @staticmethod
    def of(program: Program, carriers: Sequence[int]) -> "Fresh":
        """Draw other content.

        Raises:
            ArgumentError: if no array can have another one.
        """
        random = np.random.default_rng(_SEED)
        arrays = list(program.arrays)
        for i in carriers:
            arrays[i] = _draw(arrays[i], random)
        if all(arrays[i] is program.arrays[i] for i in carriers):
            paths = ", ".join(program.places[i].path for i in carriers)
            problem = (
                "no argument with the axis can change: integers that are all equal have no range"
            )
            raise ArgumentError(
                message(program.function, problem, f"arguments: {paths}", hint="give other values")
            )
        return Fresh(arrays)

    def within(self, program: Program, chosen: Mapping[int, np.ndarray[Any, Any]]) -> Arrays:
        """Return the inputs with other content where a mask is true.

        Args:
            program: has the inputs.
            chosen: masks by input; they broadcast against the array.
        """
        arrays = list(program.arrays)
        for i, mask in chosen.items():
            if self.arrays[i] is not program.arrays[i]:
                arrays[i] = like(np.where(mask, self.arrays[i], np.asarray(arrays[i])), arrays[i])
        return arrays


def _draw(array: Payload, random: np.random.Generator) -> Payload:
    if is_key(array):
        return array
    old = np.asarray(array)
    if old.dtype == bool:
        return ~old
    if is_float(array):
        sizes = np.abs(old.astype(np.complex128))
        scale = np.sqrt(np.mean(np.square(sizes[np.isfinite(sizes)]))) if sizes.size else 0.0
        return (random.normal(size=old.shape) * (scale or 1.0)).astype(old.dtype)
    if not old.size or old.min() == old.max():
        return array
    low, high = int(old.min()), int(old.max())
    # Every element gets a different value within the range.
    shift = random.integers(1, high - low + 1, size=old.shape)
    moved = (old.astype(np.int64) - low + shift) % (high - low + 1) + low
    return moved.astype(old.dtype)


def like(new: np.ndarray[Any, Any], old: Payload) -> Payload:
    """Put an array on the devices of another array."""
    if isinstance(old, jax.Array) and old.committed and new.shape == old.shape:
        return jax.device_put(new, old.sharding)
    return jnp.asarray(new)


def along(
    shape: Sequence[int], dimension: int, chosen: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return a mask that chooses positions of one dimension, and broadcasts against an array."""
    return np.reshape(chosen, [len(chosen) if d == dimension else 1 for d in range(len(shape))])


def add_losses(result: Tree) -> Any:
    """Return the sum of all floating results without dimensions, such as losses."""
    return sum((x for x in jax.tree.leaves(result) if is_loss(x)), jnp.zeros(()))


def is_loss(leaf: Payload) -> bool:
    """Return whether a result is a real number that has a gradient."""
    return has_type(leaf) and not leaf.shape and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def update(optimizer: Any, gradient: Tree, floating: Tree) -> Tree:
    """Return the first updates of the parameters of the function, or, if it has none, of its first argument.

    Args:
        optimizer: a transformation of Optax.
        gradient: the gradient with respect to the function and its arguments.
        floating: the floating arrays of both.
    """
    f, args = floating
    if jax.tree.leaves(f):
        return optimizer.update(gradient[0], optimizer.init(f), f)[0], ()
    return None, (optimizer.update(gradient[1][0], optimizer.init(args[0]), args[0])[0],)


def _has_module(tree: Tree) -> bool:
    """Return whether a tree is a module or contains one."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, eqx.Module))
    return any(isinstance(leaf, eqx.Module) for leaf in leaves)


@contextlib.contextmanager
def note(text: str) -> Generator[None]:
    """Add the arguments of the call to an error of a user's function, if they are not the user's own."""
    try:
        yield
    except Exception as error:
        error.add_note(text)
        raise


class Pullback:
    """Gradients of some results with respect to all floating inputs, for given cotangents.

    Attributes:
        inputs: the inputs that have a gradient.
        outs: the results that have one.
    """

    def __init__(self, program: Program, outs: Sequence[int]) -> None:
        self.inputs = [i for i, array in enumerate(program.arrays) if is_float(array)]
        results = program(program.arrays)
        self.outs = [i for i in outs if is_float(results[i])]
        self._random = np.random.default_rng(1)

        def pull(arrays: Arrays, cotangents: Arrays) -> Arrays:
            def run(floats: Arrays) -> Arrays:
                filled = list(arrays)
                for i, array in zip(self.inputs, floats, strict=True):
                    filled[i] = array
                found = program.run(filled)
                return [found[i] for i in self.outs]

            _, back = jax.vjp(run, [arrays[i] for i in self.inputs])
            gradients: Arrays = back(cotangents)[0]
            return gradients

        if not self.outs:
            self.inputs = []
        self.run = pull
        self._compiled = jax.jit(pull)

    def __call__(self, arrays: Arrays, cotangents: Arrays) -> Arrays:
        """Return the gradients."""
        found: Arrays = self._compiled(arrays, [jnp.asarray(x) for x in cotangents])
        return found

    def draw(self, like: Any) -> np.ndarray[Any, Any]:
        """Draw a cotangent."""
        drawn: np.ndarray[Any, Any] = self._random.normal(size=like.shape)
        return drawn


# Other wrappers, such as `eqx.filter_grad` or `shard_map`, change the result, so they stay.
_JITS: tuple[type[Any], ...] = (type(jax.jit(is_float)), type(eqx.filter_jit(is_float)), NamedJit)
