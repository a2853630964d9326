"""Functions of NumPy on named arrays: those that only read work, and every other one says what to write."""

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.fft
import numpy.lib.recfunctions
import numpy.linalg  # what is loaded late is listed late
import pytest
from numpy.testing.overrides import get_overridable_numpy_array_functions

import axonym as axn
from axonym.errors import OperandError

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
X = axn.named(VALUES, ("a", "b"))
Y = X.rearrange(("b", "a"))

FUNCTIONS = sorted(get_overridable_numpy_array_functions(), key=lambda fn: (fn.__module__, fn.__name__))


def load(file: io.BytesIO) -> Any:
    file.seek(0)
    return np.load(file)


def stored(save: Callable[..., None]) -> Callable[[Any], Any]:
    """Return what a file has in which a function stores an array."""

    def run(x: Any) -> Any:
        save(file := io.BytesIO(), x)
        found = load(file)
        return found["arr_0"] if isinstance(found, np.lib.npyio.NpzFile) else found

    return run


def text(x: Any) -> str:
    np.savetxt(file := io.StringIO(), x)
    return file.getvalue()


# What each of them gives is what it gives for the array without names.
READING: dict[str, Callable[[Any], Any]] = {
    "allclose": lambda x: (np.allclose(x, x), np.allclose(VALUES, x), np.allclose(x + 1, x)),
    "array2string": np.array2string,
    "array_equal": lambda x: (np.array_equal(x, x), np.array_equal(x, VALUES), np.array_equal(x, x + 1)),
    "array_equiv": lambda x: np.array_equiv(x, x),
    "array_repr": np.array_repr,
    "array_str": np.array_str,
    "can_cast": lambda x: np.can_cast(np.float64, np.float32) if x is None else np.can_cast(np.float32, np.float64),
    "common_type": np.common_type,
    "iscomplexobj": np.iscomplexobj,
    "isrealobj": np.isrealobj,
    "may_share_memory": lambda x: np.may_share_memory(x, VALUES[:0]),
    "min_scalar_type": np.min_scalar_type,
    "ndim": np.ndim,
    "result_type": lambda x: np.result_type(x, np.float64),
    "save": stored(np.save),
    "savetxt": text,
    "savez": stored(np.savez),
    "savez_compressed": stored(np.savez_compressed),
    "shape": lambda x: tuple(np.shape(x).values()) if isinstance(x, axn.NamedArray) else np.shape(x),
    "shares_memory": lambda x: np.shares_memory(x, VALUES[:0]),
    "size": lambda x: (np.size(x), np.size(x, "a" if isinstance(x, axn.NamedArray) else 0)),
}


def test_functions_that_read_find_the_array_without_names() -> None:
    for name, read in READING.items():
        np.testing.assert_equal(read(X), read(VALUES), err_msg=name)
    assert np.shape(X) == {"a": 2, "b": 3}
    np.savez(file := io.BytesIO(), w=X, other=3)
    np.testing.assert_array_equal(load(file)["w"], VALUES)

    def told(x: axn.NamedArray) -> axn.NamedArray:  # of tracers, too
        assert (np.ndim(x), np.size(x), np.shape(x)) == (2, 6, {"a": 2, "b": 3})
        return x

    jax.eval_shape(told, X)


def test_every_other_function_says_what_to_write() -> None:
    """All that NumPy lets arrays of others answer are asked: none is forgotten."""
    assert len(FUNCTIONS) > 250
    assert READING.keys() <= {fn.__name__ for fn in FUNCTIONS}
    for fn in FUNCTIONS:
        if fn.__name__ in READING:
            continue
        with pytest.raises(OperandError) as raised:
            axn.NamedArray.__array_function__(X, fn, (axn.NamedArray,), (X,), {})  # type: ignore[arg-type]
        error = raised.value
        assert error.function == f"{fn.__module__}.{fn.__name__}".replace("numpy", "np")
        assert error.problem == "functions of NumPy work by position, and return arrays without names"
        assert error.facts == ("array has: a=2, b=3",)
        form, _, plain = (error.hint or "").rpartition("; ")
        assert plain == "np.asarray(x) is the array without its names, in storage order"
        if form.startswith("write axn."):
            named: Any = axn
            for part in form.removeprefix("write axn.").split("."):
                named = getattr(named, part)
            assert callable(named)


CALLS: list[tuple[Callable[[], Any], str, str | None]] = [
    (lambda: np.dot(X, Y), "np.dot", "write axn.dot"),
    (lambda: np.dot(VALUES, Y), "np.dot", "write axn.dot"),
    (lambda: np.einsum("ij,ij", X, X), "np.einsum", "write axn.einsum"),
    (lambda: np.concatenate([X, X]), "np.concatenate", "write axn.concatenate"),
    (lambda: np.stack((X, X)), "np.stack", "write axn.stack"),
    (lambda: np.where(X > 1, X, 0), "np.where", "write axn.where"),
    (lambda: np.argmax(X), "np.argmax", "write axn.argmax"),
    (lambda: np.clip(X, 0, 1), "np.clip", "write axn.clip"),
    (lambda: np.sort(X), "np.sort", "write axn.sort"),
    (lambda: np.sum(X), "np.sum", "write axn.sum"),
    (lambda: np.mean(X, axis=0), "np.mean", "write axn.mean"),
    (lambda: np.isclose(X, X), "np.isclose", "write axn.isclose"),
    (lambda: np.linalg.norm(X), "np.linalg.norm", "write axn.linalg.norm"),
    (lambda: np.fft.fft(X), "np.fft.fft", "write axn.fft"),
    (lambda: np.zeros(3, like=X), "np.zeros", "write axn.zeros"),
    (lambda: np.copyto(np.zeros((2, 3)), X), "np.copyto", "arrays do not change; "),
    (lambda: np.transpose(X), "np.transpose", 'x.rearrange(("embed", ...)) stores the axes in another order'),
    (lambda: np.kron(X, X), "np.kron", None),
    # By position they would be equal, or not, by accident.
    (lambda: np.allclose(X, Y), "np.allclose", "write axn.allclose"),
    (lambda: np.array_equal(X, X.rename({"a": "b", "b": "a"})), "np.array_equal", "write axn.array_equal"),
    (lambda: np.array_equiv(X["a", 0], X), "np.array_equiv", "write axn.array_equiv"),
]


@pytest.mark.parametrize(("call", "function", "form"), CALLS, ids=[f"{i}-{row[1]}" for i, row in enumerate(CALLS)])
def test_a_call_by_position_names_the_function_by_name(call: Any, function: str, form: str | None) -> None:
    with pytest.raises(OperandError) as raised:
        call()
    assert raised.value.function == function
    plain = "np.asarray(x) is the array without its names, in storage order"
    hint = raised.value.hint or ""
    assert hint == plain if form is None else hint.startswith(form) and hint.endswith(f"; {plain}")


def test_the_whole_message() -> None:
    with pytest.raises(OperandError) as raised:
        np.dot(X, Y)
    assert str(raised.value) == (
        "np.dot: functions of NumPy work by position, and return arrays without names\n"
        "  operand 1 has: a=2, b=3\n"
        "  operand 2 has: b=3, a=2\n"
        "  hint: write axn.dot; np.asarray(x) is the array without its names, in storage order"
    )


def test_numpy_testing_compares_by_position() -> None:
    for compare in (np.testing.assert_array_equal, np.testing.assert_allclose, np.testing.assert_array_almost_equal):
        compare(X, VALUES)
        compare(X, X.rename({"a": "c"}))
        with pytest.raises(AssertionError):
            compare(X, X + 1)
        with pytest.raises(AssertionError):
            compare(X, Y)
    np.testing.assert_array_less(X, X + 1)
    np.testing.assert_allclose(X.mean(), 2.5)
    np.testing.assert_equal({"x": X}, {"x": VALUES})
    np.testing.assert_almost_equal(X, VALUES)
    np.testing.assert_array_max_ulp(np.asarray(X), VALUES)


def test_other_libraries_take_a_named_array_for_no_array_of_numpys_kind() -> None:
    assert not hasattr(X, "__array_function__")
    np.testing.assert_array_equal(np.asarray(X), VALUES)
    with pytest.raises(TypeError):
        jnp.dot(X, Y)
