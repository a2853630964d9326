"""Internal. The base of all layers: operations carry the name of their layer, as compiled programs and profiles show.

An operation of `self.query(x)`, within `self.attention(x)`, within `self.blocks.fold(x)`, is called
`blocks/while/body/attention/query/dot_general`. A layer does not know its name; the module that calls it does. While a
program is traced, the callers still run: those that are modules, of whatever class, say under which name they hold the
layer. So nothing is stored, nothing is global, and modules of users need no code for it.

`callers.layer_at_work` reads callers too, for errors, and looks further: at all variables, at parts of parts, and at
parts of the same type. If this module did the same, traces of four blocks would take 7 % (stacked) to 23 % (in a tuple)
longer.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial, wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.core import Tracer

from ..base.calls import refuse_misfit
from ..engine.core import Core
from ..errors import OperandError, message

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=eqx.Module)

# Between the layer of a stack and the stack are 20 to 30 calls inside of JAX.
_MOST_CALLERS = 40
# Most arguments of layers beside named arrays: no trees, so that nobody needs to flatten them.
_PLAIN = (type(None), bool, int, float, str, jax.Array)

# Methods of modules in torch and Flax, and what does the same.
_HINTS_OF_METHODS = {
    "parameters": "eqx.filter(model, eqx.is_inexact_array) keeps them, axn.parameters.table lists them",
    "named_parameters": "axn.parameters.table(model) lists parameters with their paths",
    "state_dict": "write axonym.state_dict.to_state_dict(model)",
    "load_state_dict": "write axonym.state_dict.from_state_dict(model, state_dict), which returns a new model",
    "train": "write eqx.nn.inference_mode(model, False), which returns a new model",
    "eval": "write eqx.nn.inference_mode(model), which returns a new model",
    "to": "axn.shard(model, mapping) or jax.device_put(model, device) return a model there; jmp converts dtypes",
    "cuda": "JAX computes on the first GPU it finds; jax.device_put(model, device) returns a model there",
    "zero_grad": "gradients are values that axn.grad returns; there is nothing to reset",
    "requires_grad_": "give what is trained to eqx.partition(model, mask), and differentiate by that part",
    "forward": "call the layer: layer(x)",
    "apply": "call the layer: layer(x); its parameters are in it",
    **dict.fromkeys(
        ("in_features", "out_features"), "the axes of a layer are layer.In and layer.Out"
    ),
    "bind": "call the layer: layer(x); its parameters are in it",
}


if TYPE_CHECKING:
    Made = eqx.Module
else:

    class _Made(type(eqx.Module)):
        """The class of modules that `init` makes; calling such a class fills in its fields."""

        def __call__(cls, *args: object, **options: object) -> Any:
            __tracebackhide__ = True
            # The check comes after the failure: `bind` would slow down the making of each layer.
            try:
                return super().__call__(*args, **options)
            except TypeError:
                try:
                    refuse_misfit(cls, cls.__name__, args, options)
                except OperandError:
                    if hasattr(cls, "init"):
                        raise _point_to_init(cls) from None
                    raise
                # The arguments are those of the class: the error is one of its own code.
                raise

    class Made(eqx.Module, metaclass=_Made):
        """An Equinox module that says how it is made."""


def _point_to_init(cls: Any) -> OperandError:
    """Build the error for a call of a class with the arguments of its `init`."""
    name = cls.__name__
    fields = ", ".join(inspect.signature(cls).parameters)
    given = inspect.signature(cls.init).parameters.values()
    needed = [
        f"{one.name}=..." if one.kind is one.KEYWORD_ONLY else one.name
        for one in given
        if one.default is one.empty
    ]
    problem = f"{name}(...) fills in the fields {fields}"
    hint = f"to make a layer, write {name}.init({', '.join(needed)})"
    return OperandError(message(name, problem, hint=hint))


def _explain_calls(
    init: Callable[Concatenate[type[L], P], R],
) -> Callable[Concatenate[type[L], P], R]:
    """Answer a call with wrong arguments after Python has refused it, so that right calls pay nothing for it."""

    @wraps(init)
    def call(cls: type[L], /, *args: P.args, **options: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return init(cls, *args, **options)
        except TypeError:
            refuse_misfit(partial(init, cls), f"{cls.__name__}.init", args, options)
            raise

    return call


class Layer(Made):
    """An Equinox module whose operations carry its name."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        init = vars(cls).get("init")
        if isinstance(init, classmethod):
            setattr(cls, "init", classmethod(_explain_calls(init.__func__)))  # noqa: B010
        # Only where a class defines its own call: an inherited one is wrapped already.
        if "__call__" in vars(cls):
            setattr(cls, "__call__", enter_scope(vars(cls)["__call__"]))  # noqa: B010  # of a type, it is read-only

    if not TYPE_CHECKING:  # a type checker should not take each name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            problem = f"{type(self).__name__!r} object has no attribute {name!r}"
            hint = _HINTS_OF_METHODS.get(name)
            text = problem + (f"\n  hint: {hint}" if hint else "")
            # With these, Python suggests names that are near.
            raise AttributeError(text, name=name, obj=self)

        # Optax takes the length of a state: `optimizer.update(gradients, model, state)` has them exchanged.
        def __len__(self) -> int:
            problem = "a layer has no length"
            hint = "for Optax, write optimizer.update(gradients, state, model)"
            raise OperandError(message(type(self).__name__, problem, hint=hint))

        def __bool__(self) -> bool:  # or Python would ask for the length
            return True


def enter_scope(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Let the operations of a method carry the name of the layer, once, also if it calls other methods."""

    @wraps(method)
    def call(layer: L, /, *args: P.args, **options: P.kwargs) -> R:
        # `_find_scope` reads the variables `scope` and `layer` of frames of this function: their names must stay.
        scope = None
        if _is_traced(args) or (options and _is_traced(options.values())):
            scope = _find_scope(layer, inspect.currentframe())
        try:
            if not scope:
                return method(layer, *args, **options)
            with jax.named_scope(scope):
                return method(layer, *args, **options)
        except TypeError:
            name, called = type(layer).__name__, method.__name__
            title = name if called == "__call__" else f"{name}.{called}"
            refuse_misfit(partial(method, layer), title, args, options)
            raise

    return call


def _is_traced(arguments: Iterable[object]) -> bool:
    """Return whether some argument is part of a program that is being traced; eager calls pay only for this."""
    for argument in arguments:
        given = argument.array if isinstance(argument, Core) else argument
        if isinstance(given, Tracer):
            return True
        # Trees are rare, such as the carry of a stack, and flattening takes longest.
        is_tree = given is argument and not isinstance(given, _PLAIN)
        if is_tree and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(given)):
            return True
    return False


def _find_scope(layer: eqx.Module, call: FrameType | None) -> str:
    """Return the path to a layer, from the closest caller that is in a scope, or else from the outermost module.

    Args:
        layer: the layer.
        call: the frame of the wrapped method.

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
        # All wrapped methods share the code of `call`. This one has entered its scope: the path begins below it.
        if call is not None and frame.f_code is call.f_code and frame.f_locals.get("scope"):
            if frame.f_locals["layer"] is layer:
                return ""
            break
        # A module that holds `part` adds its name, and becomes what further callers hold.
        for holder in _list_modules(frame):
            name = _name_within(holder, part)
            if name:
                path.append(name)
                part = holder
                break
    return "/".join(reversed(path)) or type(layer).__name__


def _list_modules(frame: FrameType) -> list[eqx.Module]:
    """Return the arguments of a function that are modules, `self` among them."""
    code = frame.f_code
    is_of_jax = frame.f_globals.get("__name__", "").startswith("jax.")
    if is_of_jax or not code.co_argcount:  # reading variables takes longest
        return []

    variables = frame.f_locals
    arguments: list[Any] = [variables.get(name) for name in code.co_varnames[: code.co_argcount]]
    # Not `isinstance`, which takes 1 microsecond, since it looks for an attribute `__class__` of the module.
    return [argument for argument in arguments if eqx.Module in type(argument).__mro__]


def _name_within(holder: eqx.Module, part: object) -> str | None:
    """Return the name under which a module holds a part, perhaps in a list or a dict: `layers.0`."""
    fields = vars(holder)
    # Fields first: most parts are fields, and a walk through their items takes longer.
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
