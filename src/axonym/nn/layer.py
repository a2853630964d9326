"""The base of all layers: operations carry the name of their layer, which compiled programs and profiles show.

An operation of `self.query(x)`, within `self.attention(x)`, within `self.blocks.fold(x)`, is called
`blocks/while/body/attention/query/dot_general`. A layer does not know its name; the module that calls it does. While a
program is traced, the callers still run: those that are modules, of whatever class, say under which name they hold the
layer. So nothing is stored, nothing is global, and modules of users need no code for it.

`callers.layer_at_work` reads callers too, for errors, and looks further: at all variables, at parts of parts, and at
parts of the same type. With its way here, traces of four blocks take 7 % (stacked) to 23 % (in a tuple) longer.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.core import Tracer

from ..core import Core
from ..errors import OperandError, message

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=eqx.Module)

# Between the layer of a stack and the stack are 20 to 30 calls inside of JAX.
_MOST_CALLERS = 40
# What an argument of a layer mostly is, beside an array.
_PLAIN = (type(None), bool, int, float, str, jax.Array)


if TYPE_CHECKING:
    Made = eqx.Module
else:

    class _Made(type(eqx.Module)):
        """The class of modules that `init` makes; calling such a class fills in its fields."""

        def __call__(cls, *args: object, **options: object) -> Any:
            __tracebackhide__ = True
            try:
                return super().__call__(*args, **options)
            except TypeError:
                if _fits(cls, args, options) or not hasattr(cls, "init"):
                    raise
                raise _made_by_init(cls) from None

    class Made(eqx.Module, metaclass=_Made):
        """An Equinox module that says how it is made."""


def _fits(cls: type, args: tuple[object, ...], options: Mapping[str, object]) -> bool:
    """Return whether arguments can be those of a class."""
    try:
        inspect.signature(cls).bind(*args, **options)
    except TypeError:
        return False
    return True


def _made_by_init(cls: Any) -> OperandError:
    """Build the error for the arguments of `init` that were given to the class itself."""
    name = cls.__name__
    fields = ", ".join(inspect.signature(cls).parameters)
    given = inspect.signature(cls.init).parameters.values()
    needed = [one for one in given if one.default is one.empty]
    written = list(map(_written, needed))
    problem = f"{name}(...) fills in the fields {fields}"
    hint = f"to make a layer, write {name}.init({', '.join(written)})"
    return OperandError(message(name, problem, hint=hint))


class Layer(Made):
    """An Equinox module whose operations carry its name."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            setattr(cls, "__call__", in_scope(vars(cls)["__call__"]))  # noqa: B010  # of a type, it is read-only


def in_scope(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Let the operations of a method carry the name of the layer; methods that it calls itself add no second one."""

    @wraps(method)
    def call(layer: L, /, *args: P.args, **options: P.kwargs) -> R:
        scope = None
        if _is_traced(args) or (options and _is_traced(options.values())):
            scope = _scope(layer, inspect.currentframe())
        if not scope:
            return method(layer, *args, **options)
        with jax.named_scope(scope):
            return method(layer, *args, **options)

    return call


def _written(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.KEYWORD_ONLY:
        return f"{parameter.name}=..."
    return parameter.name


def _is_traced(arguments: Iterable[object]) -> bool:
    """Return whether some argument is part of a program that is being traced; eager calls pay only for this."""
    for argument in arguments:
        given = argument
        if isinstance(argument, Core):
            given = argument.array
        if isinstance(given, Tracer):
            return True
        # such as the carry of a stack
        is_tree = given is argument and not isinstance(given, _PLAIN)
        if is_tree and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(given)):
            return True
    return False


def _scope(layer: eqx.Module, call: FrameType | None) -> str:
    """Return the path from the caller that has named itself already, or the outermost module, to a layer.

    Returns:
        The path, such as `attention/query`; the name of the class, if nobody holds the layer; nothing, if the layer
        calls itself.
    """
    path: list[str] = []
    part: object = layer
    frame = call
    for _ in range(_MOST_CALLERS):
        if frame is not None:
            frame = frame.f_back
        if frame is None:
            break
        if call is not None and frame.f_code is call.f_code and frame.f_locals.get("scope"):
            if frame.f_locals["layer"] is layer:
                return ""
            break
        for holder in _modules(frame):
            name = _name_within(holder, part)
            if name:
                path.append(name)
                part = holder
                break
    return "/".join(reversed(path)) or type(layer).__name__


def _modules(frame: FrameType) -> list[eqx.Module]:
    """Return the arguments of a function that are modules, `self` among them."""
    code = frame.f_code
    is_of_jax = frame.f_globals.get("__name__", "").startswith("jax.")
    if is_of_jax or not code.co_argcount:  # reading variables takes longest
        return []

    found: list[eqx.Module] = []
    variables = frame.f_locals
    for name in code.co_varnames[: code.co_argcount]:
        argument: Any = variables.get(name)
        # By the class: to ask a module itself takes 1 microsecond, since it looks for an attribute `__class__`.
        if eqx.Module in type(argument).__mro__:
            found.append(argument)
    return found


def _name_within(holder: eqx.Module, part: object) -> str | None:
    """Return the name under which a module holds a part, perhaps in a list or a dict: `layers.0`."""
    fields = vars(holder)
    for name, value in fields.items():
        if value is part and not name.startswith("__"):  # not the `__self__` of a bound method
            return name

    for name, value in fields.items():
        pairs: Iterable[tuple[object, object]] = ()
        if issubclass(type(value), tuple | list):
            pairs = enumerate(value)
        elif issubclass(type(value), dict):
            pairs = value.items()
        for key, item in pairs:
            if item is part:
                return f"{name}.{key}"
    return None
