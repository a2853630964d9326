"""`named_jit`: compile a function of trees, laid out by a mapping."""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import equinox as eqx
import jax

from .. import layout
from ..errors import ArgumentError, OperandError, message, suggestion
from ..layout import AxisMapping, Mappings, ResourceMapping
from ._arguments import by_parameter, check_mesh, described, enclosed, flags, is_traced, labels, named_in
from ._flattened import Flattened, Structure, made_of_immutables, modules_in
from ._keys import check_keys
from ._stages import Lowered, Traced
from .shard import lay_out_tree, names_of, no_mesh, paths_of, several_of, transforming

__all__ = ["NamedJit", "Roles", "called", "named_jit"]

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
    **jit_options: Any,
) -> "Callable[[Callable[P, R]], NamedJit[P, R]]": ...
def named_jit(
    fn: Callable[P, R] | None = None,
    axis_resources: ResourceMapping | Mappings | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    strict: bool = True,
    **jit_options: Any,
) -> Any:
    """Compile a function of trees of named arrays, and lay them out by mappings; also a decorator.

    Arrays are traced. Everything else, Python numbers included, is static: another value compiles again. A
    `jax.ShapeDtypeStruct`, such as a part of a checkpoint that is not loaded yet, is static in a call too. Mappings are
    checked while the function is traced, before anything is compiled.

    Args:
        fn: the function. If it is an Equinox module, or a method of one, its arrays are traced too.
        axis_resources: the current mapping inside the function, and the default of `out_axis_resources`. `Mappings`
            lays out arguments and results, with separate layouts for parameters, data and parameters at some paths; its
            `compute` is current inside.
        in_axis_resources: the mapping by which arguments are laid out first. By default they stay as they are.
        out_axis_resources: the mapping by which results are laid out; by default `axis_resources`, otherwise the
            mapping that is current at the call.
        donate_args: which positional arguments to donate: a bool each, or a tree of bools; those left out are kept. A
            single bool stands for all that are passed by position.
        donate_kwargs: the same for arguments that are passed by keyword, as a dict, or a single bool. If only one of
            the two mentions a parameter, it also applies when the parameter is passed the other way.
        strict: raise for keys of a mapping that no array has: none of the arguments, the results, or the arrays that
            are laid out inside or closed over.
        jit_options: further options of `jax.jit`, such as `compiler_options` or `keep_unused`.

    Raises:
        ShardingError: if there is a mapping and no mesh, or they do not fit the arrays.
        OperandError: at the call, if a static value is not hashable; at once, for options of `jax.jit` that
            `named_jit` sets, and for anything but bools in `donate_args` and `donate_kwargs`.
        ArgumentError: if `donate_kwargs` has a key that is not a keyword of the function.

    Example:
        >>> Batch, Embed = axn.make_axes(batch=8, embed=4)
        >>> mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
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
            **jit_options,
        )
    for option in jit_options:
        if option in _DECIDED:
            problem = f"{option} of jax.jit is set automatically"
            raise OperandError(message("named_jit", problem, hint=_DECIDED[option]))
    _check_bools(donate_args=donate_args, donate_kwargs=donate_kwargs)
    _check_keywords(fn, donate_kwargs)
    given, arguments, results = (
        mapping if mapping is None or isinstance(mapping, Mappings) else layout.resolve_mapping(mapping)
        for mapping in (axis_resources, in_axis_resources, out_axis_resources)
    )
    if isinstance(given, Mappings):
        roles = Roles(given.compute, arguments or given, results or given, strict)
    else:
        roles = Roles(given, arguments, results, strict)
    return NamedJit(fn, roles, donate_args, donate_kwargs, jit_options)


_DECIDED = (
    dict.fromkeys(("static_argnums", "static_argnames"), "arguments that are not arrays are static automatically")
    | dict.fromkeys(("donate_argnums", "donate_argnames"), "use donate_args and donate_kwargs")
    | {"in_shardings": "use in_axis_resources", "out_shardings": "use out_axis_resources"}
)


def _check_bools(**donated: Any) -> None:
    """Raise for what may be numbers or names of arguments, as in `jax.jit`."""
    for option, given in donated.items():
        for leaf in jax.tree.leaves(given):
            if not isinstance(leaf, bool):
                problem = f"{option} must have a bool for each argument, not {leaf!r}"
                hint = "write " + ('{"state": True}' if option == "donate_kwargs" else "(True,) for the first one")
                raise OperandError(message("named_jit", problem, hint=hint))


def _check_keywords(fn: Callable[..., Any], donate_kwargs: Any) -> None:
    """Raise for names that no call can pass by keyword; calls may leave keywords out."""
    if not isinstance(donate_kwargs, Mapping):
        return
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [parameter.name for parameter in parameters if parameter.kind in by_name]
    unknown = [key for key in donate_kwargs if key not in known]
    if unknown and all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        problem = f"donate_kwargs has {unknown[0]!r}, which is not a keyword of the function"
        facts = f"keywords: {', '.join(known) or 'none'}"
        raise ArgumentError(message("named_jit", problem, facts, hint=suggestion(unknown[0], known)))


@dataclasses.dataclass(frozen=True)
class Roles:
    """The mappings of a compiled function, by what they lay out.

    Attributes:
        inside: the current one inside.
        arguments: lays out the arguments.
        results: lays out the results.
        strict: whether each key must be an axis of some array.
        function: what the user called, for errors.
    """

    inside: AxisMapping | None = None
    arguments: AxisMapping | Mappings | None = None
    results: AxisMapping | Mappings | None = None
    strict: bool = True
    function: str = "named_jit"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Result:
    """How to rebuild a result from its arrays; it passes through jit as part of the tree structure.

    Attributes:
        tree: the structure of the result, with None in place of leaves that are not arrays.
        modules: for each module that the result is or has as an entry: where (None or a position), its range among the
            arrays, and its structure.
        rest: the leaves that are not arrays, in the structure of the result; None if all are arrays.
    """

    tree: Any
    modules: tuple[tuple[int | None, int, int, Structure], ...]
    rest: Any


def _kind(leaf: Any) -> Any:
    """Return what tells a static value from equal ones: its type, and for zeros their signs."""
    kind = type(leaf)
    return (kind, repr(leaf)) if kind in (float, complex) and leaf == 0 else kind


class _Signature:
    """The compiled function for one structure of the arguments and one set of static values."""

    __slots__ = ("compiled", "donated", "dynamic", "kept")
    compiled: jax.stages.Wrapped

    def __init__(self, compiled: Any, dynamic: list[int], donated: list[int]) -> None:
        self.compiled = compiled
        self.dynamic = dynamic
        self.donated = donated
        self.kept = [i for i in dynamic if i not in set(donated)]

    def arrays(self, leaves: list[Any]) -> tuple[list[Any], list[Any]]:
        """Sort leaves into donated and other ones."""
        if not self.donated and len(self.kept) == len(leaves):
            return [], leaves
        return [leaves[i] for i in self.donated], [leaves[i] for i in self.kept]


class NamedJit(Generic[P, R]):
    """A function compiled by `named_jit`."""

    __wrapped__: Callable[..., Any]  # errors name arguments after its parameters

    def __init__(
        self,
        fn: Callable[P, R],
        roles: Roles,
        donate_args: Any,
        donate_kwargs: Any,
        jit_options: dict[str, Any],
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._bound = (fn,) if any(map(eqx.is_array, jax.tree.leaves(fn))) else ()
        self.roles = roles
        self._donate_args = donate_args
        self._donate_kwargs = donate_kwargs
        self._jit_options = jit_options
        self._array_types: set[type] = set()
        self._static_types: set[type] = set()
        self._flattened = Flattened()
        self._signatures: dict[Any, _Signature] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the compiled function."""
        signature, leaves = self._prepare(args, kwargs)
        try:
            arrays, made = signature.compiled(*signature.arrays(leaves))
        except Exception as error:
            self._explain(error, signature, args, kwargs)
            raise
        result: Any = jax.tree.unflatten(made.tree, arrays)
        for at, start, stop, structure in made.modules:
            self._flattened.remember(result if at is None else result[at], arrays[start:stop], structure)
        combined: R = result if made.rest is None else eqx.combine(result, made.rest)
        return combined

    @overload  # not Self: for a class method, the class is the first argument already
    def __get__(self, instance: None, owner: Any = None) -> "NamedJit[..., R]": ...
    @overload
    def __get__(self: Callable[Concatenate[T, Rest], R], instance: T, owner: Any = None) -> Callable[Rest, R]: ...
    @overload  # a static method has no place for the instance
    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind a compiled method to its instance."""
        return self if instance is None else functools.partial(self, instance)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """Trace and lower for these arguments; arrays may be `jax.ShapeDtypeStruct`s."""
        return Lowered(*self._ahead("lower", args, kwargs))

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """Trace for these arguments; arrays may be `jax.ShapeDtypeStruct`s."""
        return Traced(*self._ahead("trace", args, kwargs))

    def _ahead(self, step: str, args: Any, kwargs: Any) -> tuple[Any, Callable[[Any], "NamedJit[P, R]"]]:
        """Run a stage ahead of time; return it, and a function that makes it callable."""
        signature, leaves = self._prepare(args, kwargs, ahead=True)
        try:
            stage = getattr(signature.compiled, step)(*signature.arrays(leaves))
        except Exception as error:
            self._explain(error, signature, args, kwargs)
            raise
        known = described(self.__wrapped__, args, kwargs)
        return stage, lambda compiled: _AheadOfTime(self, signature, known, compiled)

    def _explain(self, error: Exception, signature: _Signature, args: Any, kwargs: Any) -> None:
        """Name arguments in an error message as the function does, not as the function of arrays."""
        text = str(error)
        if "_arrays[" not in text:
            return
        if transforming() and f" {getattr(self._fn, '__name__', 'named_jit')} " not in text:
            return  # it is about the arguments of an outer function
        names = [name for name, _ in labels(self.__wrapped__, args, kwargs)]
        if self._bound:
            names = [f"fn{jax.tree_util.keystr(path)}" for path, _ in jax.tree.leaves_with_path(self._fn)] + names
        places = {"donated_arrays": signature.donated, "kept_arrays": signature.kept}
        named_in(error, {f"{name}[{i}]": names[at] for name, own in places.items() for i, at in enumerate(own)})

    def _prepare(self, args: Any, kwargs: Any, *, ahead: bool = False) -> tuple[_Signature, list[Any]]:
        """Return the compiled function for the structure of the arguments, and their leaves."""
        leaves: list[Any] = []
        structures: list[Structure] = []
        statics: tuple[Any, ...] = ()
        for part in (*self._bound, *args, kwargs) if kwargs else (*self._bound, *args):
            known = self._flattened.get(part)
            if known is None:
                own, tree = jax.tree.flatten(part)
                structure = self._flattened.structure(tree)
                if not self._array_types.issuperset(map(type, own)):
                    statics += self._statics(own, len(leaves), ahead)
                elif isinstance(part, eqx.Module) and made_of_immutables(tree):
                    self._flattened.remember(part, own, structure)
            else:
                own, structure = known
            leaves += own
            structures.append(structure)
        key = (bool(kwargs), *structures, statics)
        try:
            signature = self._signatures.get(key)
        except TypeError:
            kinds = sorted({type(leaf).__name__ for _, _, leaf in statics if getattr(leaf, "__hash__", None) is None})
            problem = f"static (non-array) arguments must be hashable; got {', '.join(kinds) or 'unhashable data'}"
            raise OperandError(message("named_jit", problem, hint="make it a tree of arrays, or hashable")) from None
        if signature is None:
            signature = self._signatures[key] = self._compile(structures, statics, args, kwargs, len(leaves))
        return signature, leaves

    def _statics(self, leaves: list[Any], offset: int, ahead: bool) -> tuple[tuple[int, Any, Any], ...]:
        """List the leaves that are not arrays, with positions and types; which types are arrays is remembered.

        A ShapeDtypeStruct stands for an array ahead of time, and is static in a call, which cannot compute with it.
        """
        known, others = self._array_types, self._static_types
        for kind in set(map(type, leaves)) - known - others:
            (known if is_traced(kind) and not issubclass(kind, jax.ShapeDtypeStruct) else others).add(kind)
        traced = {*known, jax.ShapeDtypeStruct} if ahead else known
        return tuple((offset + i, _kind(leaf), leaf) for i, leaf in enumerate(leaves) if type(leaf) not in traced)

    def _compile(
        self, structures: list[Structure], statics: tuple[Any, ...], args: Any, kwargs: Any, count: int
    ) -> _Signature:
        """Make the function of arrays that JAX compiles."""
        has_kwargs = bool(kwargs)
        fixed = {i: leaf for i, _, leaf in statics}
        dynamic = [i for i in range(count) if i not in fixed]
        gives = flags(self._fn, args, kwargs, self._donate_args, self._donate_kwargs)
        offset = count - len(gives)
        donated = [offset + i for i, gift in enumerate(gives) if gift and offset + i not in fixed]
        signature = _Signature(None, dynamic, donated)

        def run(donated_arrays: list[Any], kept_arrays: list[Any]) -> Any:
            leaves = dict(fixed)
            leaves.update(zip(signature.donated, donated_arrays, strict=True))
            leaves.update(zip(signature.kept, kept_arrays, strict=True))
            rest = iter([leaves[i] for i in range(count)])
            trees = [structure.tree for structure in structures]
            parts = [jax.tree.unflatten(tree, itertools.islice(rest, tree.num_leaves)) for tree in trees]
            fn = parts.pop(0) if self._bound else self._fn
            return self._traced(fn, parts, parts.pop() if has_kwargs else {})

        run.__name__ = run.__qualname__ = getattr(self._fn, "__name__", "named_jit")
        signature.compiled = jax.jit(run, donate_argnums=0, **self._jit_options)
        return signature

    def _traced(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the function on tracers, under its mappings, and check the mappings at the end."""
        roles = self.roles
        mesh = layout.context_mesh()
        inside = layout.current_mapping() if roles.inside is None else roles.inside
        results = inside if roles.results is None else roles.results
        given = [mapping for mapping in (roles.inside, roles.arguments, roles.results) if mapping is not None]
        if given and mesh is None:
            raise no_mesh(roles.function, given[0])
        parts = (fn, args, kwargs)
        if roles.function != "shard_map":  # which looks at its own arguments
            check_mesh(roles.function, self.__wrapped__, mesh, args, kwargs)
        names, paths = names_of(parts), set[str]().union(*map(paths_of, parts))
        if roles.arguments is not None and mesh is not None:
            several = several_of(parts)
            named = functools.partial(by_parameter, self.__wrapped__)
            shown: tuple[Callable[[str], str], ...] = (str, named, str)
            fn, args, kwargs = (
                lay_out_tree(part, roles.arguments, mesh, several, roles.function, show)
                for part, show in zip(parts, shown, strict=True)
            )
        strict = (*given, *([] if inside is None else [inside])) if roles.strict else ()
        ledger = layout.Ledger(layout.current().ledger, names, strict)
        with layout.context(mapping=inside, ledger=ledger):
            result = fn(*args, **kwargs)
        names |= names_of((result, enclosed(self._fn)))
        paths |= paths_of(result)
        if roles.strict:
            for mapping in (*strict, *ledger.entered):
                check_keys(roles.function, mapping, names, mesh, paths, ledger=ledger)
        if results is not None and mesh is not None:
            shown_result = lambda path: f"result.{path}" if path else "result"  # noqa: E731
            result = lay_out_tree(result, results, mesh, None, roles.function, shown_result)
        # a reference too, for which JAX raises
        arrays, rest = eqx.partition(result, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.Ref))
        flat, tree = jax.tree.flatten(arrays)
        if jax.tree.leaves(rest):
            return flat, _Result(tree, (), rest)
        known = self._flattened.structure
        modules = ((at, start, stop, known(below)) for at, start, stop, below in modules_in(result, tree))
        return flat, _Result(tree, tuple(modules), None)


def called(function: str, compiled: NamedJit[P, R]) -> NamedJit[P, R]:
    """Give the errors of a compiled function the name of what the user called."""
    compiled.roles = dataclasses.replace(compiled.roles, function=function)
    return compiled


class _AheadOfTime(NamedJit[P, R]):
    """A NamedJit that was compiled ahead of time, and compiles nothing."""

    def __init__(self, whole: NamedJit[P, R], signature: _Signature, known: dict[str, str], compiled: Any) -> None:
        self.__dict__.update(vars(whole))
        key = next(key for key, own in self._signatures.items() if own is signature)
        self._signatures = {key: _Signature(compiled, signature.dynamic, signature.donated)}
        self._known = known

    def _compile(self, structures: Any, statics: Any, args: Any, kwargs: Any, count: int) -> _Signature:
        """Raise for arguments of another structure, or with other static values."""
        given = described(self.__wrapped__, args, kwargs)
        for name in {**self._known, **given}:
            now, then = (known.get(name, "not there") for known in (given, self._known))
            if now != then:
                problem = f"{name} is {now}; when the function was compiled, it was {then}"
                break
        else:
            problem = "the structure of the arguments is not the one that the function was compiled for"
        hint = "call the function itself, which compiles for each structure and all static data"
        raise OperandError(message("named_jit", problem, hint=hint))
