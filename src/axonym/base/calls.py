"""Internal. Answer calls with wrong arguments: say what a function takes, and how other libraries call it.

Python refuses such a call before a line of the function runs, with a text that shows no signature. So a function is
called from within a `try`, which explains the error. Elementwise operations are called directly: they only take arrays,
and other libraries have the same argument names.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from types import CodeType, FunctionType
from typing import Any, NoReturn, TypeVar, cast

from ..errors import OperandError, message, suggestion
from .callers import call_at_work

F = TypeVar("F", bound=Callable[..., Any])

# Words of NumPy, torch and Flax for arguments, and ours.
_OTHER_WORDS: dict[str, tuple[str, ...]] = {
    "a": ("x", "array"),
    "affine": ("use_weight",),
    "arr": ("x", "array"),
    "axes": ("axis",),
    "bias": ("use_bias",),
    "bias_init": ("initializer",),
    "correction": ("ddof",),
    "diagonal": ("k", "offset"),
    "dim": ("axis", "Axis", "In", "axes", "new_axis"),
    "dims": ("axis", "axes"),
    "dropout": ("rate", "pdrop"),
    "elementwise_affine": ("use_weight",),
    "embedding_dim": ("Embed",),
    "epsilon": ("eps",),
    "features": ("Out",),
    "fill": ("fill_value",),
    "generator": ("key",),
    "in_features": ("In",),
    "input": ("x", "inputs", "logits"),
    "kernel_init": ("initializer",),
    "kernel_size": ("kernel_size", "Kernel"),
    "k": ("size", "new_axis"),
    "max": ("high", "a_max"),
    "min": ("low", "a_min"),
    "normalized_shape": ("axis",),
    "num_classes": ("class_axis",),
    "num_embeddings": ("Vocab",),
    "num_groups": ("groups",),
    "num_heads": ("Heads",),
    "out_features": ("Out",),
    "p": ("rate", "pdrop"),
    "param_dtype": ("dtype",),
    "repeats": ("count",),
    "rng": ("key",),
    "rngs": ("key",),
    "seed": ("key",),
    "shape": ("axes",),
    "shifts": ("shift",),
    "size": ("axes",),
    "target": ("targets", "labels"),
    "unbiased": ("ddof",),
    "use_scale": ("use_weight",),
}
# Words that need none of ours.
_ADVICE: dict[str, str] = {
    **dict.fromkeys(
        ("keepdim", "keepdims"),
        "leave it out: operands are lined up by name, without axes of size 1",
    ),
    **dict.fromkeys(("out", "inplace"), "leave it out: arrays do not change, so use the result"),
    **dict.fromkeys(("batch_first", "order"), "leave it out: axes are found by name, in any order"),
    **dict.fromkeys(("in_axes", "out_axes"), 'name the axis that is mapped: axn.vmap(f, "batch")'),
    "is_causal": "write mask=nn.causal()",
    "device": "jax.device_put(x, device) or axn.shard(x, mapping) moves an array",
    "requires_grad": "gradients are those of functions: axn.grad(loss)(x)",
    **dict.fromkeys(
        ("training", "train", "deterministic"),
        "eqx.nn.inference_mode(model) returns a model that does not drop",
    ),
}
# The hint below what a function takes.
IN_ORDER = "give the arguments in this order, or by name"
_MISSING = object()
_AXES = {"axis", "axes", "new_axis", "new_axes", "In", "Out"}


def explain_calls(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Let functions of a module answer calls with wrong arguments.

    Args:
        namespace: the globals of the module.
        names: its public names; those that are no functions stay as they are.
    """
    for name in names:
        if isinstance(namespace[name], FunctionType):
            namespace[name] = explain_call(namespace[name])


def refuse_arithmetic(axis: type) -> None:
    """Let wrong calls and operators of the class of axes say what would work."""

    def refuse(one: Any, *_: object, **__: object) -> NoReturn:
        problem = f"{one.name!r} is an axis, and no number"
        hint = "Axis.size is a number; Embed.resize(2 * Embed.size) is an axis of twice the size"
        raise OperandError(message("Axis", problem, hint=hint))

    # Not in the class, so that type checkers report them.
    for operator in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
        setattr(axis, f"__{operator}__", refuse)
        setattr(axis, f"__r{operator}__", refuse)
    for conversion in ("index", "int", "float"):
        setattr(axis, f"__{conversion}__", refuse)
    setattr(axis, "__init__", explain_call(getattr(axis, "__init__")))  # noqa: B009, B010  # mypy refuses attributes


def explain_call(function: F) -> F:
    """Let a function answer a call with wrong arguments after Python has refused it.

    A call through `*args, **options` would add 4 % to an eager sum. So usual calls go through a function with the same
    arguments, which adds 1 %.
    """

    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **options)
        except TypeError:
            if function.__name__ == "__init__":
                made = partial(function, args[0])
                refuse_misfit(made, type(args[0]).__name__, args[1:], options)
            refuse_misfit(function, function.__name__, args, options)
            raise

    code = function.__code__
    count, all_count = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    if not count or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return cast(F, wraps(function)(call))
    names = code.co_varnames[:all_count]

    def call_unusual(values: tuple[Any, ...], extra: tuple[Any, ...], others: Any) -> Any:
        __tracebackhide__ = True
        # If there are too many by position, all of these were given so.
        first = itertools.takewhile(lambda one: one is not _MISSING, values[:unnamed])
        by_position = values[:count] if extra else tuple(first)
        options = {
            name: value
            for name, value in list(zip(names, values, strict=True))[len(by_position) :]
            if value is not _MISSING and name not in others
        }
        return call(*by_position, *extra, **options, **others)

    defaults = function.__defaults__ or ()
    by_name = {name: (function.__kwdefaults__ or {}).get(name, _MISSING) for name in names[count:]}
    lacking = count - len(defaults)
    # All that are needed but the last one, which is often an axis, and given by its name.
    unnamed = max(1, lacking - 1)
    needed = (
        *range(lacking),
        *(i for i in range(count, all_count) if by_name[names[i]] is _MISSING),
    )
    scope = {
        "function": _take_all_by_position(function),
        "call_unusual": call_unusual,
        "MISSING": _MISSING,
        "__name__": __name__,  # errors leave out frames of the package
    }
    template = _write_call(count, all_count - count, unnamed, needed)
    passing = template.replace(co_varnames=(*names, *template.co_varnames[all_count:]))
    made = FunctionType(passing, scope, function.__name__, (_MISSING,) * lacking + defaults)
    made.__kwdefaults__ = by_name
    return cast(F, wraps(function)(made))


def _take_all_by_position(function: Callable[..., Any]) -> FunctionType:
    """Return a function that takes keyword arguments by position as well, which makes a call quicker."""
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    code = code.replace(co_argcount=count, co_kwonlyargcount=0)
    return FunctionType(code, function.__globals__, closure=function.__closure__)


@cache
def _write_call(count: int, named: int, unnamed: int, needed: tuple[int, ...]) -> CodeType:
    """Write a function that passes usual calls on, and all others, right or wrong, to a slower one.

    Its first arguments have no names, so an argument that is given twice still arrives: `concatenate([x, y],
    axis="embed")`. Functions differ only in the names of the other arguments, so few texts are compiled.

    Args:
        count: how many arguments may be given by position.
        named: how many others there are.
        unnamed: how many of the first ones have no names.
        needed: which ones have no default.
    """
    names = [f"_{i}" for i in range(count + named)]
    values = ", ".join(names)
    given = ", ".join(
        [*names[:unnamed], "/", *names[unnamed:count], "*extra", *names[count:], "**others"]
    )
    is_unusual = " or ".join(["extra", "others", *(f"_{i} is MISSING" for i in needed)])
    text = f"lambda {given}: call_unusual(({values},), extra, others) if {is_unusual} else function({values})"
    made: FunctionType = eval(text)
    return made.__code__


@contextmanager
def explaining_names() -> Generator[None, None, None]:
    """Add to an error of JAX, which got a named array from a function of the user, what to write there."""
    try:
        yield
    except TypeError as error:
        if "axonym.array.NamedArray" in str(error) and not getattr(error, "__notes__", None):
            error.add_note(
                "hint: a function of JAX got a named array: call the one of axonym, such as axn.clip, or give it "
                "x.array, which for an array without axes is x.scalar()"
            )
        raise


def refuse_misfit(
    function: Callable[..., Any], title: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    """Raise for arguments that do not fit the signature of a function, or a class.

    Args:
        function: what was called.
        title: its name in the error.
        args: what was given by position.
        options: what was given by name.

    Raises:
        OperandError: if they do not fit; it says what the function takes.
    """
    __tracebackhide__ = True
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **options)
    except TypeError:
        problem, hint = _find_misfit(title, signature.parameters, args, options)
        raise OperandError(message(title, problem, write_arguments(function), hint=hint)) from None


def write_arguments(function: Callable[..., Any]) -> str:
    """Write what a function takes, for an error."""
    # Types would make the line too long to read.
    taken = inspect.signature(function).parameters.values()
    shown = inspect.Signature([one.replace(annotation=one.empty) for one in taken])
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", f"it takes: {shown}")


def find_order(entry: object, is_meant: Callable[[object], bool]) -> tuple[str, ...]:
    """Return, as a fact for an error, the arguments of the function that the user called, if some may be exchanged.

    Args:
        entry: the argument that does not fit.
        is_meant: whether another one would fit there.
    """
    call = call_at_work()
    if call is None or not any(one is entry for one in call[1]) or not any(map(is_meant, call[1])):
        return ()
    return (write_arguments(call[0]),)


def is_axes(value: object) -> bool:
    """Return whether a value is an axis, or may be several."""
    return is_axis(value) or isinstance(value, tuple | list | Mapping)


def _find_misfit(
    title: str,
    taken: Mapping[str, inspect.Parameter],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
) -> tuple[str, str | None]:
    """Return what is wrong with the arguments of a call, and what would work."""
    positional = [
        name
        for name, one in taken.items()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    kinds = {one.kind for one in taken.values()}
    unknown = (
        []
        if inspect.Parameter.VAR_KEYWORD in kinds
        else [name for name in options if name not in taken]
    )
    extra = [] if inspect.Parameter.VAR_POSITIONAL in kinds else args[len(positional) :]
    given = {*positional[: len(args)], *options}
    lacking = [
        name
        for name, one in taken.items()
        if one.default is one.empty
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and name not in given
    ]
    arrays = [arg for arg in (*args, *options.values()) if _has_names(arg)]
    if unknown:
        hint = _advise(unknown[0], taken, arrays)
        if hint is None and _returns_function(positional):
            hint = f"the others go to what it returns: {title}({', '.join(positional)})(...)"
        return f"there is no argument {unknown[0]!r}", hint
    twice = [name for name in positional[: len(args)] if name in options]
    if twice:
        hint = f"{twice[0]} goes first" if twice[0] == positional[0] else IN_ORDER
        return f"{twice[0]} is given by position and by name", hint
    if extra:
        names = ", ".join(positional) or "none"
        are = "argument is" if len(args) == 1 else "arguments are"
        problem = f"{len(args)} {are} given by position, where it takes {len(positional)}: {names}"
        return problem, _place(title, extra, args[: len(positional)], positional, taken, lacking)
    problem = f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
    return problem, _fill(lacking, args, arrays)


def _returns_function(positional: list[str]) -> bool:
    """Return whether a function returns another one: it takes one, or a class of layers."""
    return positional[:1] in (["f"], ["fn"], ["fun"]) or positional[-1:] == ["module"]


def _advise(word: str, taken: Iterable[str], arrays: list[Any]) -> str | None:
    """Return what to write instead of an argument that a function does not have."""
    if word in _ADVICE:
        return _ADVICE[word]
    ours = [name for name in _OTHER_WORDS.get(word, ()) if name in taken]
    if ours:
        return f"write {ours[0]}"
    if any(word in x.names for x in arrays):
        return f'names go in a dict: {{"{word}": ...}}'
    return suggestion(word, taken)


def _place(
    title: str,
    extra: Sequence[Any],
    args: tuple[Any, ...],
    positional: list[str],
    taken: Mapping[str, inspect.Parameter],
    lacking: list[str],
) -> str | None:
    """Return where surplus positional arguments belong."""
    last, several = positional[-1:], (*args[-1:], *extra)
    if "key" in lacking and any(hasattr(one, "dtype") for one in (*args, *extra)):
        return "write key=..."
    if not positional and all(isinstance(one, Mapping) for one in extra):
        return f"write {title}(**...)"
    if not positional and all(isinstance(one, str) for one in extra):
        return f"write {', '.join(f'{one}=...' for one in extra)}"
    # The last argument takes several of a kind, where one is there and more follow.
    if last and last[0] in _AXES and all(map(is_axis, several)):
        return f"several axes go in a tuple: {last[0]}=({', '.join(map(_write, several))})"
    if last == ["layers"]:
        return "layers go in a list, as one argument"
    if last == ["arrays"] and all(map(_has_names, several)):
        return "several arrays go in a list, as one argument"
    if last == ["renames"] and all(map(is_axis, several)):
        return f"names go in a dict: {{{': '.join(map(_write, several))}}}"
    if _returns_function(positional):
        return f"the others go to what it returns: {title}({', '.join(positional)})(...)"
    has_names = any(one.kind is one.KEYWORD_ONLY for one in taken.values())
    return "give the others by name" if has_names else None


def _fill(lacking: list[str], args: tuple[Any, ...], arrays: list[Any]) -> str | None:
    """Return a hint on the arguments that a call lacks, if one is likely."""
    if lacking == ["key"]:
        if any(hasattr(one, "dtype") for one in args):
            return "the key goes by its name: key=..."
        return "a key is made from a seed: key=jax.random.key(0)"
    # All operands have the axis of a product.
    shared = (
        [name for name in arrays[0].names if all(name in x.names for x in arrays)] if arrays else []
    )
    if lacking[0] in ("axis", "new_axis") and shared:
        return (
            f'name one: {lacking[0]}="{shared[-1]}"'
            if lacking[0] == "axis"
            else f'name it: {lacking[0]}="all"'
        )
    if lacking[:1] == ["axis"] and args and callable(args[0]):
        return 'name the axis that is mapped, as in axn.vmap(f, "batch")'
    if lacking == ["depth"]:
        return "depth counts the layers: MLP.init(In, Out, width, depth, key=key)"
    if lacking == ["arrays"]:
        return "the axis goes first"
    if lacking == ["size"]:
        return 'an axis has a size: Axis("batch", 32); where one is there, "batch" alone names it'
    return IN_ORDER if args else None


def _has_names(value: object) -> bool:
    """Return whether a value is a named array; the class is in a higher room."""
    return hasattr(type(value), "names") and hasattr(type(value), "array")


def is_axis(value: object) -> bool:
    """Return whether a value names one axis; the class is in a higher room."""
    return isinstance(value, str) or type(value).__name__ == "Axis"


def _write(axis: Any) -> str:
    return f'"{axis}"' if isinstance(axis, str) else f'"{axis.name}"'
