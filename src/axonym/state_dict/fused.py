"""Internal. Arrays of files that hold several layers side by side, and layers whose parts have keys of their own."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FUSED = re.compile(r"(.*)\.(\d)(\.weight|\.bias|)")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


class Fusion(NamedTuple):
    """Layers whose arrays are side by side in one array of a file, `KEY.weight`, or `KEY` alone.

    The parts have the keys `KEY.0.weight`, `KEY.1.weight` and so on, or `KEY.0`.

    Attributes:
        key: the end of the key.
        sizes: the size of each part of a head.
        heads: the number of heads, if the parts of each head are side by side, and not all heads of a part.
        axis: along which they lie.
    """

    key: str
    sizes: tuple[int, ...]
    heads: int = 1
    axis: int = 0

    def split(self, array: Array, part: int) -> Array:
        """Return a part."""
        first, last = np.cumsum((0, *self.sizes))[part : part + 2]
        return self._merge(self._by_head(array)[:, first:last])

    def join(self, parts: Sequence[Array]) -> Array:
        """Return the array of all parts."""
        return self._merge(np.concatenate([self._by_head(part) for part in parts], axis=1))

    def _by_head(self, array: Array) -> Array:
        """Return a view whose first dimensions are heads, and the positions of all parts within a head."""
        first = np.moveaxis(array, self.axis, 0)
        return first.reshape(self.heads, -1, *first.shape[1:])

    def _merge(self, array: Array) -> Array:
        return np.moveaxis(array.reshape(-1, *array.shape[2:]), 0, self.axis)


class Lazy(Protocol):
    """A mapping to arrays that knows their shapes without making them."""

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, key: str, /) -> Array: ...
    def spec(self, key: str) -> Any:
        """Return the shape and the dtype of an array."""


class Arrays(Mapping[str, Array]):
    """Arrays by key, each made when it is looked up, so that at most one is in memory."""

    def __init__(self) -> None:
        self._makers: dict[str, tuple[Any, Callable[[], Array]]] = {}

    def add(self, key: str, spec: Any, make: Callable[[], Array]) -> None:
        """Add an array: its shape and dtype, and a function that makes it."""
        self._makers[key] = spec, make

    def __getitem__(self, key: str) -> Array:
        return self._makers[key][1]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def spec(self, key: str) -> Any:
        """Return the shape and the dtype of an array, without making it."""
        return self._makers[key][0]


def split_fused(files: Mapping[str, Array], fusions: Sequence[Fusion]) -> Arrays:
    """Split fused arrays of files into parts, and join numbered experts under keys with a star."""
    found = Arrays()
    experts: dict[str, dict[int, Array]] = {}
    for key, array in files.items():
        owner = _find_owner(key)
        if fusion := _find_fusion(owner, fusions):
            for i, size in enumerate(fusion.sizes):
                shape = list(array.shape)
                shape[fusion.axis] = size * fusion.heads
                spec = jax.ShapeDtypeStruct(tuple(shape), array.dtype)
                name = f"{owner}.{i}{key.removeprefix(owner)}"
                found.add(name, spec, functools.partial(fusion.split, array, i))
        elif expert := EXPERT.fullmatch(key):
            experts.setdefault(f"{expert[1]}.*.{expert[3]}", {})[int(expert[2])] = array
        else:
            found.add(key, array, functools.partial(np.asanyarray, array))
    for key, numbered in experts.items():
        parts = [numbered[i] for i in sorted(numbered)]
        spec = jax.ShapeDtypeStruct((len(parts), *parts[0].shape), parts[0].dtype)
        found.add(key, spec, functools.partial(stack_parts, parts))
    return found


def join_fused(state: Lazy, fusions: Sequence[Fusion]) -> Arrays:
    """Return arrays by the keys of files; the inverse of `split_fused`."""
    found = Arrays()
    fused_keys: dict[str, list[str]] = {}
    for key in state:
        spec, fused = state.spec(key), FUSED.fullmatch(key)
        if fused and _find_fusion(fused[1], fusions):
            fused_keys.setdefault(fused[1] + fused[3], []).append(key)
        elif "*" in key:
            one = jax.ShapeDtypeStruct(spec.shape[1:], spec.dtype)
            for i in range(spec.shape[0]):
                make = functools.partial(lambda key, i: state[key][i], key, i)
                found.add(key.replace("*", str(i)), one, make)
        else:
            found.add(key, spec, functools.partial(state.__getitem__, key))
    for name, parts in fused_keys.items():
        fusion = _find_fusion(_find_owner(name), fusions)
        assert fusion is not None
        spec = state.spec(parts[0])
        shape = list(spec.shape)
        shape[fusion.axis] = fusion.heads * sum(fusion.sizes)
        make = functools.partial(
            lambda fusion, parts: fusion.join([state[part] for part in parts]),
            fusion,
            sorted(parts),
        )
        found.add(name, jax.ShapeDtypeStruct(tuple(shape), spec.dtype), make)
    return found


def combine(state: Lazy, ends: Sequence[str], make: Callable[..., Any]) -> Arrays:
    """Combine arrays whose keys differ only in one of the given ends into one array, by a function.

    Args:
        state: arrays by key.
        ends: an end for each operand of the function; the key of the result has none.
        make: a function of arrays, which JAX can trace for the shape of the result.
    """
    found = Arrays()
    for key in state:
        keys = [key.replace(ends[0], end) for end in ends]
        if ends[0] in key:
            spec = jax.eval_shape(make, *map(state.spec, keys))
            read = functools.partial(
                lambda keys: make(*(np.asarray(state[key]) for key in keys)), keys
            )
            found.add(key.replace(ends[0], ""), spec, read)
        elif not any(end in key for end in ends):
            found.add(key, state.spec(key), functools.partial(state.__getitem__, key))
    return found


def _find_owner(key: str) -> str:
    return key.removesuffix(".weight").removesuffix(".bias")


def _find_fusion(owner: str, fusions: Sequence[Fusion]) -> Fusion | None:
    return next((fusion for fusion in fusions if owner.endswith(f".{fusion.key}")), None)


def stack_parts(parts: Sequence[Array]) -> Array:
    """Stack arrays; if they are at equal distances in one file, return a view of it without reading them.

    The experts of a layer are, if their names sort in the order of their numbers.
    """
    # Not `StoredArray`, which knows the axes of the parts.
    plain = [part.view(np.ndarray) for part in parts]
    first = plain[0]
    places = [part.__array_interface__["data"][0] for part in plain]
    steps = set(np.diff(places).tolist())
    alike = {(part.shape, part.strides, part.dtype.str, id(buffer_of(part))) for part in plain}
    if len(steps) != 1 or len(alike) != 1 or isinstance(buffer_of(first), np.ndarray):
        return np.stack(plain)
    return np.lib.stride_tricks.as_strided(
        first, (len(plain), *first.shape), (steps.pop(), *first.strides), writeable=False
    )


def buffer_of(array: Array) -> object:
    """Return the owner of the memory of an array: the map of a file, or an array itself."""
    held: object = array
    while isinstance(held, np.ndarray | memoryview):
        below = held.base if isinstance(held, np.ndarray) else held.obj
        if below is None:
            break
        held = below
    return held
