"""Sizes of the results of each layer while a program runs: also in loops, in branches and on devices."""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import P as Spec
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import jaxpr_as_fun

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree, has_type
from ..costs.traced.equations import count_unstacked
from ..engine.core import payload_of
from ..engine.operands import own_names
from ..layout.tracing import varying, varying_over
from ..nn.layer import enter_scope
from ..nn.stack.interleaved import Interleaved
from ..nn.stack.stacked import Stacked
from ..testing.equations import Site, Visitor, find_call, list_modules, make_function
from ..testing.program import Arrays, Program
from .sizes import Row, Several, Statistics, statistics

__all__ = ["watch"]

P = ParamSpec("P")
R = TypeVar("R")

_TAG = "axonym.debug.watch "
# Functions with limits, and the limits.
_LIMITS = {"tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "logistic": (0.0, 1.0)}

_Path = tuple[str, ...]
_Rows = OrderedDict[str, Row]
_Shares = dict[_Path, tuple[Any, Any]]


def watch(f: Callable[P, R], by: Several = ()) -> Callable[P, tuple[R, Statistics]]:
    """Make a function that also returns the sizes of the results of each layer.

    Layers are modules that are called. The result is a function of arrays like the original: compile it, and call it
    where you want the numbers. Each number is one reduction over the result of a layer. The original function does not
    change, and costs the same as before.

    - A layer in a stack has a row with the axis of the stack's layers; in another `scan`, it has a row with an axis
    `iteration`.
    - In a `while` loop, a row has the numbers of all iterations together, and `count` is the number of iterations.
    - In a `cond`, the layers of all branches have rows, and `count` is 1 for layers that ran. Numbers of a layer that
      did not run are NaN.
    - Inside `shard_map`, a row has the numbers of all devices together. To keep devices apart, put the mesh axis in
      `by`. Any other axis of `by` in the result also keeps devices apart, since each device has its own positions of
      it.

    Watch a complete step, not the loss that it differentiates: custom gradients do not pass through. Backward passes
    are not watched: measure gradients by `statistics`. Other layers that cannot be watched, such as in the condition of
    a `while`, are listed in `unwatched` of the result.

    Args:
        f: any function of named arrays, such as a model or a step.
        by: axes along which numbers stay separate, if a result has them.

    Returns:
        A function of the same arguments that returns the result and the statistics.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=4, mlp=8)
        >>> mlp = axn.nn.MLP.init(Embed, Embed, Mlp, 1, key=jax.random.key(0))
        >>> y, seen = jax.jit(axn.debug.watch(lambda mlp, x: mlp(x)))(mlp, axn.ones(Embed))
        >>> list(seen.rows)
        ['layers.0', 'layers.1', 'model']
    """
    axes = frozenset(map(axis_name, [by] if isinstance(by, AxisSelector) else by))

    @functools.wraps(f)
    def run(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Statistics]:
        called = functools.partial(f, **kwargs) if kwargs else f
        program = Program("watch", called, args)
        made: dict[str, Any] = {}

        def flat(arrays: Arrays) -> Arrays:
            result = program.call_unwrapped(arrays)
            leaves, made["structure"] = jax.tree.flatten(result)
            made["is_array"] = [has_type(leaf) for leaf in leaves]
            made["static"] = [leaf for leaf in leaves if not has_type(leaf)]
            return [leaf for leaf in leaves if has_type(leaf)]

        with _tag_results((program.f, program.args)):
            watched = _Watch(flat, program, axes)
        arrays = iter(watched.inline(watched.program, program.arrays, Site()))
        static = iter(made["static"])
        leaves = [next(arrays) if is_array else next(static) for is_array in made["is_array"]]
        seen = Statistics(watched.found.finish(), tuple(watched.unwatched))
        return jax.tree.unflatten(made["structure"], leaves), seen

    return run


@contextlib.contextmanager
def _tag_results(tree: Tree) -> Generator[None]:
    """Let modules tag their results in the programs that are traced within the block."""
    changed: list[tuple[type, Any]] = []
    for cls in {cls for module in list_modules(tree) for cls in type(module).__mro__}:
        if issubclass(cls, eqx.Module) and "__call__" in vars(cls):
            changed.append((cls, vars(cls)["__call__"]))
            setattr(cls, "__call__", enter_scope(_tag(getattr(cls, "__call__"))))  # noqa: B004, B009, B010  # of a type
    try:
        yield
    finally:
        for cls, method in changed:
            setattr(cls, "__call__", method)  # noqa: B010


def _tag(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(layer: Any, /, *args: Any, **options: Any) -> Any:
        result = method(layer, *args, **options)
        leaves, structure = jax.tree.flatten(result, is_leaf=is_named_array)
        for i, leaf in enumerate(leaves):
            array = payload_of(leaf)
            if has_type(array) and jnp.issubdtype(array.dtype, jnp.inexact):
                names = own_names(leaf)
                sizes = array.shape[len(array.shape) - len(names) :]
                named = json.dumps(list(zip(names, sizes, strict=True)))
                tagged = checkpoint_name(array, _TAG + named)
                leaves[i] = NamedArray(tagged, leaf.names) if is_named_array(leaf) else tagged
                break
        return jax.tree.unflatten(structure, leaves)

    return call


class _Found:
    """The findings in a part of a program.

    Attributes:
        rows: the sizes by the path of the layer, in the order of the program. JAX sorts the keys of other dicts.
        shares: by layer, how many results of functions with limits are near a limit, and how many there are.
        counted: the paths of layers that run as often as a branch or a loop decides.
    """

    def __init__(self) -> None:
        self.rows: _Rows = OrderedDict()
        self.shares: _Shares = {}
        self.counted: set[str] = set()

    def add(self, path: str, row: Row, *, is_counted: bool) -> None:
        """Add a row; a layer that is called again has one for each call."""
        path = path.partition(" call ")[0]
        again = sum(key.partition(" call ")[0] == path for key in self.rows)
        name = f"{path} call {again}" if again else path
        self.rows[name] = row
        self.counted |= {name} if is_counted else set()

    def add_share(self, layer: _Path, near: Any, size: Any) -> None:
        """Add results of functions with limits."""
        old_near, old_size = self.shares.get(layer, (0.0, 0.0))
        self.shares[layer] = old_near + near, old_size + size

    def merge(self, rows: _Rows, shares: _Shares, counted: set[str] | None = None) -> None:
        """Add the findings of a part of the program; by default, a branch or a loop decides how often it runs."""
        for path, row in rows.items():
            self.add(path, row, is_counted=counted is None or path in counted)
        for layer, (near, size) in shares.items():
            self.add_share(layer, near, size)

    def finish(self) -> _Rows:
        """Return the rows; numbers of layers that did not run are NaN."""

        def check(row: Row) -> Row:
            ran = _count(row) > 0
            numbers = dataclasses.replace(row, count=None)
            numbers = _map(lambda x: jnp.where(_expand(ran, x), x, jnp.nan), numbers)
            return dataclasses.replace(numbers, count=row.count)

        return OrderedDict(
            (path, check(row) if path in self.counted else dataclasses.replace(row, count=None))
            for path, row in self.rows.items()
        )


class _Watch(Visitor):
    """A program that also measures tagged arrays; values are arrays.

    Attributes:
        found: the findings in the part of the program that the walk is in.
        unwatched: the layers that cannot be watched, each with its location.
    """

    def __init__(self, run: Callable[..., Any], program: Program, by: frozenset[str]) -> None:
        super().__init__(run, program.arrays, program)
        self._by = by
        self.found = _Found()
        self.unwatched: list[str] = []
        stacks = jax.tree.leaves((program.f, program.args), is_leaf=_is_stack)
        self._stacks = {one.Block.size: one.Block.name for one in stacks if _is_stack(one)}

    def apply(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[Any],
        count: int,
        equation: Any,
        site: Site,
    ) -> Sequence[Any]:
        """Run an operation, and measure the array that it tags."""
        results = run(*operands)
        name = equation.primitive.name
        if not _is_forward(equation, site):
            return results
        if name in _LIMITS:
            low, high = _LIMITS[name]
            margin = 0.01 * (high - low)
            near = (results[0] < low + margin) | (results[0] > high - margin)
            layer = self.find_layer(equation, site)
            self.found.add_share(layer, jnp.sum(near, dtype=jnp.float32), jnp.float32(near.size))
        if _is_tag(equation):
            named = json.loads(equation.params["name"].removeprefix(_TAG))
            self._add(self.find_layer(equation, site), results[0], dict(named))
        return results

    def visit(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Run equations without layers unchanged, with their own gradients and checkpoints."""
        name = equation.primitive.name
        programs = tuple(equation.params.values())
        layers = list(self._list_layers(programs, site.enter(equation)))
        walks = {"scan": self._loop, "while": self._repeat, "cond": self._branch}
        walks["shard_map"] = self._enter_devices
        if layers and name in walks:
            return walks[name](equation, operands, site)
        if find_call(equation) is not None and (layers or name in {"jit", "pjit"}):
            return super().visit(equation, operands, site)
        self._skip(layers, name)
        count = len(equation.outvars)
        return self.apply(make_function(equation), operands, count, equation, site)

    def _list_layers(self, programs: Any, site: Site) -> Iterator[str]:
        """Yield the paths of layers in programs, except in backward passes."""
        for program in _list_programs(programs):
            for one in getattr(program, "jaxpr", program).eqns:
                if _is_tag(one) and _is_forward(one, site):
                    yield ".".join(self.find_layer(one, site)) or "model"
                yield from self._list_layers(tuple(one.params.values()), site.enter(one))

    def _skip(self, layers: Iterable[str], where: str) -> None:
        texts = [f"{layer}, inside of {where}" for layer in layers]
        self.unwatched = list(dict.fromkeys(self.unwatched + texts))

    @contextlib.contextmanager
    def _collect(self) -> Generator[_Found]:
        """Collect the findings within the block."""
        outer, self.found = self.found, _Found()
        try:
            yield self.found
        finally:
            self.found = outer

    def _loop(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Run a loop that also returns the sizes of each iteration."""
        params = equation.params
        body, length = params["jaxpr"], params["length"]
        carries = count_unstacked(equation.outvars, body.jaxpr.outvars)
        constants = count_unstacked(equation.invars, body.jaxpr.invars) - carries
        counted: set[str] = set()

        def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
            own = [*operands[:constants], *carry, *slices]
            with self._collect() as part:
                found = self.inline(body, own, site.enter(equation, "scan"))
            counted.update(part.counted)
            return list(found[:carries]), (list(found[carries:]), part.rows, part.shares)

        carried, sliced = operands[constants:][:carries], operands[constants + carries :]
        options = {"length": length, "reverse": params["reverse"], "unroll": params["unroll"]}
        last, (stacked, rows, shares) = jax.lax.scan(step, carried, sliced, **options)
        name = self._stacks.get(length, "iteration")
        rows = OrderedDict((path, _lead(row, (name,))) for path, row in rows.items())
        self.found.merge(rows, jax.tree.map(lambda x: jnp.sum(x, 0), shares), counted)
        return [*last, *stacked]

    def _repeat(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Run a loop of unknown length that also returns the sizes of all iterations together."""
        params = equation.params
        first, second = params["cond_nconsts"], params["body_nconsts"]
        asked, given = operands[:first], operands[first : first + second]
        inside = site.enter(equation, "while")
        goes_on = jaxpr_as_fun(params["cond_jaxpr"])
        self._skip(self._list_layers(params["cond_jaxpr"], inside), "the condition of a while")

        def turn(state: Sequence[Any]) -> tuple[list[Any], Any]:
            with self._collect() as part:
                found = self.inline(params["body_jaxpr"], [*given, *state], inside)
            return list(found), (part.rows, part.shares)

        def body(carry: Any) -> Any:
            state, (rows, shares) = carry
            state, (own, own_shares) = turn(state)
            both = OrderedDict((path, _add_up(row, own[path])) for path, row in rows.items())
            return state, (both, jax.tree.map(jnp.add, shares, own_shares))

        state = operands[first + second :]
        start = _zeros(lambda state: turn(state)[1], state)
        last, found = jax.lax.while_loop(
            lambda carry: goes_on(*asked, *carry[0])[0], body, (state, start)
        )
        self.found.merge(*found)
        return last

    def _branch(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Run a branch that also returns the sizes of the layers of all branches: zeros for skipped branches."""
        index, *given = operands
        branches = equation.params["branches"]
        inside = site.enter(equation, "cond")
        rows: _Rows = OrderedDict()
        shares: _Shares = {}

        def run(branch: int, given: Sequence[Any]) -> tuple[list[Any], _Rows, _Shares]:
            with self._collect() as part:
                found = self.inline(branches[branch], given, inside)

            def name(path: str, row: Row) -> str:
                # Of one layer in two branches, only one runs; results of other shapes have rows of their own.
                return path if _are_alike(rows.get(path, row), row) else f"{path} branch {branch}"

            own = OrderedDict((name(path, row), row) for path, row in part.rows.items())
            return list(found), own, part.shares

        for i in range(len(branches)):
            own, own_shares = _zeros(lambda given, i=i: run(i, given)[1:], given)
            for mine, more in ((rows, own), (shares, own_shares)):
                for key, zero in more.items():
                    mine[key] = _vary_as(mine.get(key, zero), zero)

        def fill(own: Any, zeros: Any) -> Any:
            return type(zeros)((key, _vary_as(own.get(key, x), x)) for key, x in zeros.items())

        def call(branch: int, zeros: tuple[_Rows, _Shares], *given: Any) -> Any:
            found, own, own_shares = run(branch, given)
            return found, (fill(own, zeros[0]), fill(own_shares, zeros[1]))

        calls = [functools.partial(call, i) for i in range(len(branches))]
        results: list[Any]
        results, found = jax.lax.switch(index, calls, (rows, shares), *given)
        self.found.merge(*found)
        return results

    def _enter_devices(self, equation: Any, operands: list[Any], site: Site) -> Sequence[Any]:
        """Run a `shard_map` that also returns the sizes on all devices, together or apart."""
        params = equation.params
        mesh = params["mesh"]
        axes = tuple(axis for axis in mesh.axis_names if axis in params["newly_manual_axes"])
        counted: set[str] = set()

        def gather(row: Row) -> Row:
            is_apart = not self._by.isdisjoint(row.rms.names)
            apart = tuple(axis for axis in axes if is_apart or axis in self._by)
            row = _add_devices(row, tuple(axis for axis in axes if axis not in apart))
            sizes = tuple(mesh.shape[axis] for axis in apart)

            def place(x: Any) -> Any:
                at = tuple(map(jax.lax.axis_index, apart))
                return jax.lax.psum(jnp.zeros((*sizes, *x.shape), x.dtype).at[at].set(x), apart)

            return _lead(_map(place, row), apart) if apart else row

        def local(*own: Any) -> Any:
            with self._collect() as part:
                found = self.inline(params["jaxpr"], own, site.enter(equation, "shard_map"))
            counted.update(part.counted)
            rows, shares = part.rows, part.shares
            if params["check_vma"]:
                # A sum is over all devices, including devices that have the same numbers.
                rows, shares = jax.tree.map(lambda x: varying(x, axes), (rows, shares))
            rows = OrderedDict((path, gather(row)) for path, row in rows.items())
            return found, (rows, jax.tree.map(lambda x: jax.lax.psum(x, axes), shares))

        mapped = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=tuple(params["in_specs"]),
            out_specs=(tuple(params["out_specs"]), Spec()),
            axis_names={*axes},
            check_vma=params["check_vma"],
        )
        # Outside of `jit`, JAX refuses some axes of a mesh.
        results: Sequence[Any]
        results, (rows, shares) = jax.jit(mapped)(*operands)
        self.found.merge(rows, shares, counted)
        return results

    def _add(self, layer: _Path, array: Any, sizes: dict[str, int]) -> None:
        path = ".".join(layer) or "model"
        row = statistics({"result": _align(array, sizes)}, tuple(self._by)).rows["result"]
        own = [share for path, share in self.found.shares.items() if path[: len(layer)] == layer]
        if own:
            near, size = (sum(each) for each in zip(*own, strict=True))
            row = dataclasses.replace(row, saturated=NamedArray(near / jnp.maximum(size, 1), ()))
        # As the row, it varies over devices.
        one = NamedArray(varying(jnp.int32(1), varying_over(row.rms.array)), ())
        self.found.add(path, dataclasses.replace(row, count=one), is_counted=False)


def _is_stack(node: object) -> bool:
    return isinstance(node, Stacked | Interleaved)


def _is_tag(equation: Any) -> bool:
    name = equation.params.get("name")
    return equation.primitive.name == "name" and str(name).startswith(_TAG)


def _is_forward(equation: Any, site: Site) -> bool:
    """Return whether an operation belongs to the forward pass, not to a gradient or its recomputation."""
    place = site.enter(equation).prefix
    return "transpose(" not in place and "rematted_computation" not in place


def _list_programs(value: Any) -> Iterator[Any]:
    """Yield the programs among the parameters of an equation."""
    if hasattr(getattr(value, "jaxpr", value), "eqns"):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _list_programs(each)


def _align(array: Any, sizes: dict[str, int]) -> NamedArray:
    """Name dimensions by their sizes, as `vmap` adds others anywhere; ambiguous ones get no names, and come first."""
    possible = [
        places
        for places in itertools.combinations(range(array.ndim), len(sizes))
        if [array.shape[d] for d in places] == [*sizes.values()]
    ]
    found = dict(zip(sizes, zip(*possible, strict=True), strict=True))
    sure = {name: places[0] for name, places in found.items() if len({*places}) == 1}
    last = range(array.ndim - len(sure), array.ndim)
    return NamedArray(jnp.moveaxis(array, [*sure.values()], [*last]), tuple(sure))


def _map(function: Callable[[Any], Any], row: Row) -> Row:
    """Change the arrays of a row, but not their names."""
    changed: Row = jax.tree.map(
        lambda x: NamedArray(function(x.array), x.names), row, is_leaf=is_named_array
    )
    return changed


def _lead(row: Row, names: tuple[str, ...]) -> Row:
    """Name the leading dimensions of the arrays of a row."""

    def one(x: Any) -> NamedArray:
        array = payload_of(x)
        # A loop in a loop would repeat the name.
        own = [f"{name}.outer" if name in x.names else name for name in names]
        return NamedArray(array, (*own, *x.names))

    named: Row = jax.tree.map(one, row, is_leaf=is_named_array)
    return named


def _count(row: Row) -> Any:
    assert row.count is not None
    return row.count.array


def _expand(x: Any, like: Any) -> Any:
    """Append dimensions of size 1 to an array until it has as many as another one."""
    return jnp.reshape(x, (*x.shape, *(1 for _ in range(like.ndim - x.ndim))))


def _add_up(one: Row, other: Row) -> Row:
    """Return the sizes of two results together."""
    total = _count(one) + _count(other)
    share = _count(other) / jnp.maximum(total, 1)

    def mean(x: Any, y: Any) -> Any:
        own = _expand(share, x)
        return x * (1 - own) + y * own

    return _combine((one, other), mean, jnp.maximum, total)


def _add_devices(row: Row, axes: tuple[str, ...]) -> Row:
    """Combine the sizes of the results on all devices along some mesh axes."""
    if not axes:
        return row
    total = jax.lax.psum(_count(row), axes)
    share = _count(row) / jnp.maximum(total, 1)

    def mean(x: Any) -> Any:
        return jax.lax.psum(x * _expand(share, x), axes)

    def most(x: Any) -> Any:
        return jax.lax.pmax(x, axes)

    return _combine((row,), mean, most, most(_count(row)))


def _combine(
    rows: Sequence[Row], mean: Callable[..., Any], most: Callable[..., Any], count: Any
) -> Row:
    def each(name: str, function: Callable[..., Any]) -> Any:
        found: list[NamedArray | None] = [getattr(row, name) for row in rows]
        own = [x.array for x in found if x is not None]
        return NamedArray(function(*own), found[0].names) if found[0] is not None else None

    def root(*own: Any) -> Any:
        return jnp.sqrt(mean(*map(jnp.square, own)))

    return dataclasses.replace(
        rows[0],
        rms=each("rms", root),
        largest=each("largest", most),
        zeros=each("zeros", mean),
        saturated=each("saturated", mean),
        count=NamedArray(count, rows[0].count.names if rows[0].count is not None else ()),
    )


def _zeros(function: Callable[..., Any], *args: Any) -> Any:
    """Return zeros with the types of a function's results, including shardings and varying mesh axes."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

    def make(aval: Any) -> Any:
        zero = jnp.zeros(aval.shape, aval.dtype)
        if any(aval.sharding.spec):
            zero = jax.reshard(zero, aval.sharding)
        return varying(zero, aval.mat.varying)

    return jax.tree.unflatten(jax.tree.structure(shapes), map(make, program.out_avals))


def _vary_as(tree: Tree, other: Tree) -> Any:
    """Mark arrays as varying over the same mesh axes as others, since all branches must return the same types."""
    return jax.tree.map(lambda x, y: varying(x, varying_over(y)), tree, other)


def _are_alike(one: Row, other: Row) -> bool:
    types: list[Any] = [jax.tree.map(jnp.shape, row) for row in (one, other)]
    return eqx.tree_equal(*types) is True
