"""`named_jit`: compile a function of trees, and shard them by a mapping.

It is `jax.jit` for named arrays and modules: arrays are traced and everything else is static, arguments and results are
sharded by mappings, and errors name arguments by their paths. One compiled function is kept for each structure.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import equinox as eqx
import jax

from ..current.features import Feature, using
from ..errors import OperandError, message
from ..layout import assignment, context
from ..layout.assignment import AxisMapping, Mappings, ResourceMapping
from ..layout.records import LEDGER, Ledger
from .arguments import (
    as_module,
    by_parameter,
    check_bools,
    check_given_once,
    check_keywords,
    check_mesh,
    check_options,
    describe_arguments,
    donation_error,
    donations,
    find_definition,
    first_arrays,
    identifiers,
    is_deleted,
    is_traced,
    labels,
    list_closure,
    signature_of,
)
from .flattened import Flattened, Structure, modules_in
from .keys import (
    check_keys,
    check_mesh_axes,
    warn_of_unmapped_layers,
    warn_of_unused_storage,
)
from .numbers import ChangingNumbers
from .options import PRODUCTS, Products
from .signatures import Result, Signature, has_hash, identify
from .stages import Lowered, Traced
from .trees import collect_names, collect_paths, find_several, no_mesh, shard_tree

__all__ = ["NamedJit", "Roles", "named_jit", "remapped"]

P = ParamSpec("P")
R = TypeVar("R")
Rest = ParamSpec("Rest")
T = TypeVar("T")


@overload
def named_jit(
    fn: Callable[P, R],
    axis_resources: ResourceMapping | Mappings | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    strict: bool = True,
    rings: bool = False,
    **jit_options: Any,
) -> "NamedJit[P, R]": ...
@overload
def named_jit(
    fn: None = None,
    axis_resources: ResourceMapping | Mappings | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    strict: bool = True,
    rings: bool = False,
    **jit_options: Any,
) -> "Callable[[Callable[P, R]], NamedJit[P, R]]": ...
def named_jit(
    fn: Callable[P, R] | None = None,
    axis_resources: ResourceMapping | Mappings | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: object = None,
    donate_kwargs: object = None,
    strict: bool = True,
    rings: bool = False,
    **jit_options: Any,
) -> Any:
    """Compile a function of trees of named arrays, and shard them by mappings; also a decorator.

    Arrays are traced. Everything else, Python numbers included, is static: another value compiles again. A
    `jax.ShapeDtypeStruct`, such as a part of a checkpoint that is not loaded yet, is static in a call too. Mappings are
    checked while the function is traced, before anything is compiled.

    Args:
        fn: the function. If it is an Equinox module, or a method of one, its arrays are traced too.
        axis_resources: the current mapping inside the function, and the default of `out_axis_resources`. `Mappings`
            shards arguments and results, with separate layouts for parameters, data and parameters at some paths; its
            `compute` is current inside.
        in_axis_resources: the mapping by which arguments are sharded first. By default they stay as they are.
        out_axis_resources: the mapping by which results are sharded; by default `axis_resources`, and without that the
            mapping that is current at the call.
        donate_args: which positional arguments to donate: a bool or a tree of bools for each; further arguments are
            kept. A single bool is for all positional arguments.
        donate_kwargs: the same for arguments that are passed by keyword, as a dict, or a single bool. If only one of
            the two mentions a parameter, it also applies when the parameter is passed the other way.
        strict: raise for keys of a mapping that no array has: no argument, no result, and no array that the function
            shards or closes over.
        rings: if a mapping splits positions over the mesh axis of the hidden axis of a perceptron, `nn.MLP` with one
            hidden layer or `nn.GatedMLP`, send blocks of positions around a ring while other blocks are multiplied.
            Results are the same, up to rounding. The compiler does it in these cases: the activation is neither in
            `axonym.nn` nor `tanh`, the layer has its own `dot_general`, weights are split along further axes, or the
            layer is inside of a `shard_map` or a `vmap`.
        jit_options: further options of `jax.jit`, such as `compiler_options` or `keep_unused`.

    Returns:
        A `NamedJit`, which is called like `fn`; without `fn`, a decorator that makes one.

    Raises:
        ShardingError: if there is a mapping and no mesh, or they do not fit the arrays.
        OperandError: at the call, if a static value is not hashable; at once, for options of `jax.jit` that
            `named_jit` sets, for unknown options, and for anything but bools in `donate_args`, `donate_kwargs` and
            `rings`.
        ArgumentError: if `donate_kwargs` has a key that is not a keyword of the function.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=8, embed=4)
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> with axn.set_mesh(mesh):
        ...     x = axn.named_jit(lambda: axn.ones((Batch, Embed)), {"batch": "data", "embed": None})()
        >>> x.sharding.spec[0]
        'data'
    """
    if fn is None:
        return functools.partial(
            named_jit,
            axis_resources=axis_resources,
            in_axis_resources=in_axis_resources,
            out_axis_resources=out_axis_resources,
            donate_args=donate_args,
            donate_kwargs=donate_kwargs,
            strict=strict,
            rings=rings,
            **jit_options,
        )
    check_options("named_jit", jit_options)
    check_bools(donate_args=donate_args, donate_kwargs=donate_kwargs)
    check_keywords(fn, donate_kwargs)
    if not isinstance(rings, bool):
        raise OperandError(message("named_jit", f"rings must be True or False, not {rings!r}"))
    given = _resolve(axis_resources)
    arguments, results = _resolve(in_axis_resources), _resolve(out_axis_resources)
    if isinstance(given, Mappings):
        # Two mappings say how arguments are stored; one may be that of the computation only, and moves no argument.
        roles = Roles(given.compute, arguments or given, results or given, strict, rings=rings)
    else:
        roles = Roles(given, arguments, results, strict, rings=rings)
    return NamedJit(fn, roles, donate_args, donate_kwargs, jit_options)


def _resolve(mapping: ResourceMapping | Mappings | None) -> AxisMapping | Mappings | None:
    if mapping is None or isinstance(mapping, Mappings):
        return mapping
    return context.resolve_mapping(mapping)


@dataclasses.dataclass(frozen=True)
class Roles:
    """The mappings of a compiled function: of arguments, results and the computation.

    Attributes:
        inside: the current mapping inside.
        arguments: the mapping of the arguments; None leaves them as they are.
        results: the mapping of the results; None takes `inside`.
        strict: whether each key must be an axis of some array.
        function: what the user called, for errors.
        manual: whether products gather their weights in a shard_map.
        rings: whether perceptrons send positions in rings.

    Examples:
        >>> step = axn.named_jit(lambda x: x + 1, {"batch": "data"})
        >>> print(step.roles.inside, step.roles.arguments)
        {'batch': 'data'} None
    """

    inside: AxisMapping | None = None
    arguments: AxisMapping | Mappings | None = None
    results: AxisMapping | Mappings | None = None
    strict: bool = True
    function: str = "named_jit"
    manual: bool = False
    rings: bool = False


class NamedJit(Generic[P, R]):
    """A function compiled by `named_jit`.

    Call it like the function itself. `lower` and `trace` work as in `jax.jit`.

    Attributes:
        roles: its mappings.

    Examples:
        >>> double = axn.named_jit(lambda x: 2 * x)
        >>> isinstance(double, axn.partitioning.jit.NamedJit), double(axn.ones({"batch": 2})).tolist()
        (True, [2.0, 2.0])
    """

    __wrapped__: Callable[..., Any]  # errors name arguments after its parameters

    def __init__(
        self,
        fn: Callable[P, R],
        roles: Roles,
        donate_args: object,
        donate_kwargs: object,
        jit_options: dict[str, Any],
    ) -> None:
        fn = as_module(fn)
        # It takes the name and the docstring, but not the attributes, which could replace ours.
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        # A module with arrays is an argument of its own, so that a program holds no copies of weights.
        self._bound: tuple[Any, ...] = (fn,) if any(map(eqx.is_array, jax.tree.leaves(fn))) else ()
        self.roles = roles
        self._donate_args = donate_args
        self._donate_kwargs = donate_kwargs
        self._jit_options = jit_options
        # These are the types of leaves so far: a usual call compares sets and looks at no leaf.
        self._array_types: set[type] = set()
        self._static_types: set[type] = set()
        self._flattened = Flattened()
        self._signatures: dict[Any, Signature] = {}
        self._numbers = ChangingNumbers()

    def with_roles(self, roles: Roles) -> "NamedJit[P, R]":
        """Return the same function, compiled by other mappings, or with errors that name another function of Axonym.

        Args:
            roles: the new mappings and options; donated arguments stay the same.

        Examples:
            >>> step = axn.named_jit(lambda x: x + 1)
            >>> step.with_roles(axn.partitioning.jit.Roles(strict=False)).roles.strict
            False
        """
        donated = self._donate_args, self._donate_kwargs
        return NamedJit(self._fn, roles, *donated, self._jit_options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the compiled function; a new structure, shape or static value compiles first.

        Raises:
            ArgumentError: if an argument was donated to an earlier call, or is donated twice.
            OperandError: if a static value is not hashable.

        Examples:
            >>> axn.named_jit(lambda x, power: x**power)(axn.full({"x": 2}, 3.0), 2).tolist()
            [9.0, 9.0]
        """
        signature, leaves = self._prepare(args, kwargs)
        for place in signature.probed:
            if is_deleted(leaves[place]):
                raise donation_error(self.roles.function, self.__wrapped__, args, kwargs)
        if signature.gifts is not None:
            check_given_once(self.roles.function, self.__wrapped__, args, kwargs, signature.gifts)
            # One check is enough: a program that passes an array twice does so from its first call on, and to check all
            # arrays takes time.
            signature.gifts = None
        arrays, made = signature.compiled(*signature.arrays(leaves))
        result: Any = jax.tree.unflatten(made.tree, arrays)
        for at, start, stop, structure in made.modules:
            module = result if at is None else result[at]
            self._flattened.remember(module, arrays[start:stop], structure)
        if made.rest is not None:
            result = eqx.combine(result, made.rest)
        returned: R = result
        return returned

    @overload  # not Self: for a class method, the class is the first argument already
    def __get__(self, instance: None, owner: Any = None) -> "NamedJit[..., R]": ...
    @overload
    def __get__(
        self: Callable[Concatenate[T, Rest], R], instance: T, owner: Any = None
    ) -> Callable[Rest, R]: ...
    @overload  # a static method has no place for the instance
    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: object = None) -> Any:
        """Bind a compiled method to its instance."""
        if instance is None:
            return self
        return functools.partial(self, instance)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """Trace and lower for these arguments; arrays may be `jax.ShapeDtypeStruct`s.

        Returns:
            A stage of JAX. Its `compile()` returns a function with the arguments of this one.

        Examples:
            >>> lowered = axn.named_jit(lambda x: 2 * x).lower(axn.ones({"batch": 2}))
            >>> lowered.compile()(axn.ones({"batch": 2})).tolist()
            [2.0, 2.0]
        """
        return Lowered(*self._run_ahead("lower", args, kwargs))

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """Trace for these arguments; arrays may be `jax.ShapeDtypeStruct`s.

        Returns:
            A stage of JAX, which has the program as `jaxpr`, and can be lowered.

        Examples:
            >>> len(axn.named_jit(lambda x: 2 * x).trace(axn.ones({"batch": 2})).jaxpr.in_avals)
            1
        """
        return Traced(*self._run_ahead("trace", args, kwargs))

    def _run_ahead(
        self, step: str, args: object, kwargs: object
    ) -> tuple[Any, Callable[[Any], "NamedJit[P, R]"]]:
        """Trace or lower ahead of time; return the stage, and a function that makes a compiled stage callable."""
        signature, leaves = self._prepare(args, kwargs, ahead=True)
        stage = getattr(signature.compiled, step)(*signature.arrays(leaves))
        known = describe_arguments(self.__wrapped__, args, kwargs)
        return stage, lambda compiled: _AheadOfTime(self, signature, known, compiled)

    def _prepare(
        self, args: Any, kwargs: Any, *, ahead: bool = False
    ) -> tuple[Signature, list[Any]]:
        """Return the compiled function for the structure of the arguments, and their leaves."""
        leaves: list[Any] = []
        structures: list[Structure] = []
        statics: tuple[Any, ...] = ()
        # Arguments are flattened one by one, so that a module that is known costs one look-up.
        parts = (*self._bound, *args)
        if kwargs:
            parts = (*parts, kwargs)
        for part in parts:
            known = self._flattened.get(part)
            if known is None:
                own, tree = jax.tree.flatten(part)
                structure = self._flattened.structure(tree)
                if not self._array_types.issuperset(map(type, own)):
                    statics += self._list_statics(own, len(leaves), ahead)
                elif isinstance(part, eqx.Module):
                    self._flattened.remember(part, own, structure)
            else:
                own, structure = known
            leaves += own
            structures.append(structure)
        # The first entry says whether the last structure is that of keywords.
        key = (bool(kwargs), *structures, statics)
        try:
            signature = self._signatures.get(key)
        except TypeError:
            unhashable = {type(leaf).__name__ for _, _, leaf in statics if not has_hash(leaf)}
            kinds = ", ".join(sorted(unhashable)) or "unhashable data"
            problem = f"static (non-array) arguments must be hashable; got {kinds}"
            hint = "make it a tree of arrays, or hashable"
            raise OperandError(message("named_jit", problem, hint=hint)) from None
        if signature is None:
            signature = self._signatures[key] = self._compile(
                structures, statics, args, kwargs, len(leaves)
            )
            if not ahead:
                self._numbers.note(self._name, key[:-1], statics, self._list_paths(args, kwargs))
        return signature, leaves

    @property
    def _name(self) -> str:
        # A `functools.partial` has no name.
        name: str = getattr(self._fn, "__name__", "named_jit")
        return name

    def _list_paths(self, args: object, kwargs: object) -> list[str]:
        """Return the paths of all leaves: those of the function, if it has arrays, and of the arguments."""
        own = jax.tree.leaves_with_path(self._bound)
        paths = [f"fn{jax.tree_util.keystr(path[1:])}" for path, _ in own]
        return paths + [path for path, _ in labels(self.__wrapped__, args, kwargs)]

    def _list_statics(
        self, leaves: list[object], offset: int, ahead: bool
    ) -> tuple[tuple[int, Any, Any], ...]:
        """List the leaves that are not arrays, with positions and types; which types are arrays is remembered.

        A ShapeDtypeStruct stands for an array ahead of time. In a call, it is static, since it has no values.
        """
        known, others = self._array_types, self._static_types
        for kind in set(map(type, leaves)) - known - others:
            if is_traced(kind) and not issubclass(kind, jax.ShapeDtypeStruct):
                known.add(kind)
            else:
                others.add(kind)
        statics: list[tuple[int, object, object]] = []
        for place, leaf in enumerate(leaves, start=offset):
            if type(leaf) not in known and not (ahead and type(leaf) is jax.ShapeDtypeStruct):
                statics.append((place, identify(leaf), leaf))
        return tuple(statics)

    def _compile(
        self,
        structures: list[Structure],
        statics: tuple[Any, ...],
        args: Any,
        kwargs: Any,
        count: int,
    ) -> Signature:
        """Make the function of arrays that JAX compiles."""
        has_kwargs = bool(kwargs)
        fixed = {i: leaf for i, _, leaf in statics}
        dynamic = [i for i in range(count) if i not in fixed]

        def run(*arrays: Any) -> Any:
            # Static leaves are constants of this program: another value has another key.
            filled = dict(fixed)
            filled.update(zip(dynamic, arrays, strict=True))
            rest = iter([filled[i] for i in range(count)])
            parts: list[Any] = []
            for structure in structures:
                own = itertools.islice(rest, structure.tree.num_leaves)
                parts.append(jax.tree.unflatten(structure.tree, own))
            fn = parts.pop(0) if self._bound else self._fn
            kwargs = parts.pop() if has_kwargs else {}
            return self._trace(fn, parts, kwargs)

        # In programs and errors of JAX, arguments then have the names of parameters and fields.
        names = identifiers(self._list_paths(args, kwargs))
        run.__name__ = run.__qualname__ = self._name
        vars(run)["__signature__"] = signature_of(names[i] for i in dynamic)
        # Errors of JAX then point at the user's line.
        vars(run)["__wrapped__"] = find_definition(self._fn)

        gifts = donations(self._fn, args, kwargs, self._donate_args, self._donate_kwargs)
        own = count - len(gifts)  # arrays of the function itself are not donated
        donated = [place for place, i in enumerate(dynamic) if i >= own and gifts[i - own]]
        compiled = jax.jit(run, donate_argnums=donated, **self._jit_options)
        # JAX crashes for memory that is gone. Most arguments are donated completely, so one array of each is checked:
        # to check all would slow down each call.
        probed = first_arrays([structure.tree for structure in structures], dynamic)
        probed += [dynamic[place] for place in donated[:1]]
        return Signature(compiled, dynamic, probed, gifts if donated else None)

    def _trace(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the function on tracers, under its mappings, and check the mappings at the end."""
        roles = self.roles
        mesh = context.context_mesh()
        inside = context.current_mapping() if roles.inside is None else roles.inside
        results = inside if roles.results is None else roles.results
        own = (roles.inside, roles.arguments, roles.results)
        given = [mapping for mapping in own if mapping is not None]
        if given and mesh is None:
            raise no_mesh(roles.function, given[0])
        for mapping in given:
            for each in assignment.each_mapping(mapping):
                check_mesh_axes(roles.function, each, mesh)

        parts = (fn, args, kwargs)
        if roles.function != "shard_map":  # which looks at its own arguments
            check_mesh(roles.function, self.__wrapped__, mesh, args, kwargs)
        names, paths = collect_names(parts), set[str]().union(*map(collect_paths, parts))
        if roles.arguments is not None and mesh is not None:
            # A name has one size in the whole call, so all parts share the known sizes.
            shard_part = functools.partial(
                shard_tree,
                mapping=roles.arguments,
                mesh=mesh,
                several=find_several(parts),
                function=roles.function,
            )
            shown = functools.partial(by_parameter, self.__wrapped__)
            fn, args = shard_part(fn), shard_part(args, shown=shown)
            kwargs = shard_part(kwargs)

        checked: list[AxisMapping | Mappings] = []
        if roles.strict:
            checked += given if inside is None else [*given, inside]
        ledger = Ledger(LEDGER.get(), names, checked)
        outer = PRODUCTS.get()
        products = Products(roles.manual or outer.manual, roles.rings or outer.rings)
        changes: dict[Feature[Any], object]
        changes = {context.MAPPING: inside, LEDGER: ledger, PRODUCTS: products}
        if given:
            # Gradients inside are sharded as parameters are stored, which is how a step returns them.
            changes[context.STORED] = results
        with using(changes):
            result = fn(*args, **kwargs)
        if inside is not None:
            warn_of_unmapped_layers(roles.function, inside, ledger)
        # The axes of the arrays inside are known now, and so are misspelled keys.
        names |= collect_names((result, list_closure(self._fn)))
        paths |= collect_paths(result)
        if roles.strict:
            # The mappings of `axis_mapping` blocks inside are checked as well.
            for mapping in (*checked, *ledger.entered):
                check_keys(roles.function, mapping, names, mesh, paths, ledger=ledger)
            if isinstance(roles.arguments, Mappings):
                used = parts, list_closure(self._fn)
                warn_of_unused_storage(roles.function, roles.arguments, used, result)
        if results is not None and mesh is not None:
            result = shard_tree(
                result, results, mesh, None, roles.function, _path_of_result, is_result=True
            )
        return self._take_apart(result)

    def _take_apart(self, result: object) -> tuple[list[Any], Result]:
        """Return the arrays of a result, and how to rebuild it."""
        # References count as arrays, so that JAX raises for them.
        arrays, rest = eqx.partition(
            result, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.Ref)
        )
        flat, tree = jax.tree.flatten(arrays)
        if jax.tree.leaves(rest):
            return flat, Result(tree, (), rest)
        modules = [
            (at, start, stop, self._flattened.structure(below))
            for at, start, stop, below in modules_in(result, tree)
        ]
        return flat, Result(tree, tuple(modules), None)


def _path_of_result(path: str) -> str:
    return f"result.{path}" if path else "result"


def remapped(
    fn: Callable[P, R] | NamedJit[P, R], mappings: Mappings, function: str, *, strict: bool
) -> NamedJit[P, R]:
    """Compile a function by other mappings than its own; a `NamedJit` donates the same arguments as before.

    Args:
        fn: the function.
        mappings: the mappings of results; `mappings.compute` is the current mapping inside. Arguments stay as they are.
        function: what the user called, for errors.
        strict: whether each key must be an axis of some array.

    Returns:
        A `NamedJit` with the options of `fn`, if that is one.

    Examples:
        >>> mappings = axn.Mappings({"embed": "data"}, {"batch": "data"})
        >>> step = axn.partitioning.jit.remapped(lambda x: x + 1, mappings, "cost", strict=False)
        >>> print(step.roles.function, step.roles.inside)
        cost {'batch': 'data'}
    """
    roles = Roles(mappings.compute, None, mappings, strict=strict, function=function)
    if not isinstance(fn, NamedJit):
        return NamedJit(fn, roles, None, None, {})
    return fn.with_roles(dataclasses.replace(roles, manual=fn.roles.manual, rings=fn.roles.rings))


class _AheadOfTime(NamedJit[P, R]):
    """A NamedJit that was compiled ahead of time, and compiles nothing."""

    def __init__(
        self, whole: NamedJit[P, R], signature: Signature, known: dict[str, str], compiled: object
    ) -> None:
        # It shares what the whole function remembers of modules, and keeps one program.
        self.__dict__.update(vars(whole))
        key = next(key for key, own in self._signatures.items() if own is signature)
        self._signatures = {
            key: Signature(compiled, signature.dynamic, signature.probed, signature.gifts)
        }
        self._known = known

    def _compile(
        self, structures: object, statics: object, args: object, kwargs: object, count: int
    ) -> Signature:
        """Raise for arguments of another structure, or with other static values."""
        given = describe_arguments(self.__wrapped__, args, kwargs)
        problem = "the structure of the arguments is not the one that the function was compiled for"
        for name in {**self._known, **given}:
            now, then = given.get(name, "not there"), self._known.get(name, "not there")
            if now != then:
                # The first difference explains the error; more would hide it.
                problem = f"{name} is {now}; when the function was compiled, it was {then}"
                break
        hint = "call the function itself, which compiles for each structure and all static data"
        raise OperandError(message("named_jit", problem, hint=hint))
