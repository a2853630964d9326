"""Internal. Check that a state dict fits a model; one error lists all that does not fit, and the call that would.

`convert` calls `fit`. This reads shapes, dtypes and names; it reads values only of integers that are cast.
"""

import dataclasses
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from ..base.kinds import Payload, Typed
from ..errors import ArgumentError, OperandError, message, suggestion
from ..layout.assignment import add_bases
from .axes import StoredArray, StoredAxes, StoredAxis
from .places import Form, Index, Place, axes_of, on_host, spec_of
from .record import axes_text

Entries: TypeAlias = Mapping[str, tuple[Place, Index]]
Specs: TypeAlias = Mapping[str, Typed]
KINDS = ("missing", "unexpected", "wrong axes", "wrong shape", "wrong dtype", "wrong values")
SHOWN = 20  # of each kind


@dataclasses.dataclass(frozen=True)
class Rival:
    """Another reading of the same state dict, for hints.

    Attributes:
        call: how to ask for it.
        entries: makes its entries, which have the same keys.
    """

    call: str
    entries: Callable[[], Entries]


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a state dict is read.

    Attributes:
        function: the name of the function that the user called.
        entries: the arrays of the model by key.
        state: the state dict.
        prefix: the first component of the keys that belong to the model.
        strict: whether missing and unexpected keys are errors.
        cast: whether dtypes may differ.
        rename_axes: from names of the model to those that the axes have in the state dict.
        rivals: other readings.
        torch: the reading in the layouts of torch; None if this is that reading, or if the user has chosen layouts.
    """

    function: str
    entries: Entries
    state: Mapping[str, Payload]
    prefix: str | None
    strict: bool
    cast: bool
    rename_axes: Mapping[str, str]
    rivals: tuple[Rival, ...]
    torch: Rival | None

    def name_there(self, name: str) -> str:
        """Return the name that an axis of the model has in the state dict; derived ones follow their base."""
        # The longest base decides: the table may have `embed` and `embed.out`.
        bases = [base for base in add_bases((name,)) if base in self.rename_axes]
        base = max(bases, key=len, default="")
        return self.rename_axes[base] + name[len(base) :] if base else name

    def extra(self) -> list[str]:
        """Return the keys that the model lacks."""
        own = f"{self.prefix}." if self.prefix else ""
        return [key for key in self.state if key not in self.entries and key.startswith(own)]


@dataclasses.dataclass
class Flaws:
    """The misfits of a state dict: keys and their faults, by kind."""

    found: dict[str, list[tuple[str, str]]] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, key: str, text: str) -> None:
        """Note that something does not fit."""
        self.found.setdefault(kind, []).append((key, text))

    def lines(self) -> Iterator[str]:
        """Yield a line for each flaw, up to a limit for each kind."""
        for kind in KINDS:
            flaws = self.found.get(kind, [])
            yield from (f"{kind}: {key}: {text}" for key, text in flaws[:SHOWN])
            if len(flaws) > SHOWN:
                yield f"{kind}: and {len(flaws) - SHOWN} more"


def fit(reading: Reading) -> dict[str, Form]:
    """Return the stored forms of the arrays that both the model and the state dict have.

    Raises:
        ArgumentError: if something does not fit.
    """
    _check_renames(reading)
    flaws = Flaws()
    forms: dict[str, Form] = {}
    specs: dict[str, Typed] = {}
    extra = reading.extra()
    for key, (place, _) in reading.entries.items():
        if key not in reading.state:
            # An array without values cannot stay as it is.
            if reading.strict or isinstance(place.array, jax.ShapeDtypeStruct):
                flaws.add("missing", key, _missing_text(flaws, key, place, extra))
            continue
        specs[key] = spec_of(reading.function, reading.state, key)
        form = _find_form(reading, flaws, key, specs[key])
        if form is not None:
            forms[key] = form
        _compare_dtypes(reading, flaws, key, specs[key].dtype)
    if reading.strict:
        for key in extra:
            shape = spec_of(reading.function, reading.state, key).shape
            flaws.add("unexpected", key, str(tuple(shape)))
    if flaws.found:
        kinds = [kind for kind in KINDS if kind in flaws.found]
        counts = ", ".join(f"{len(flaws.found[kind])} {kind}" for kind in kinds)
        hint = "; ".join(_hints(reading, flaws, specs))
        problem = f"the state dict does not fit: {counts}"
        raise ArgumentError(message(reading.function, problem, *flaws.lines(), hint=hint or None))
    if not reading.strict:
        _require_use(reading, forms, extra)
    _warn_of_squares(reading, specs)
    return forms


def _missing_text(flaws: Flaws, key: str, place: Place, extra: list[str]) -> str:
    """Describe a missing array and the nearest key; skip this if the line will not be shown."""
    # To compare a key with all others takes long, and thousands may be missing.
    is_shown = len(flaws.found.get("missing", ())) < SHOWN
    near = suggestion(key, extra) if is_shown else None
    return f"{place.form.text}; {near}" if near else place.form.text


def _check_renames(reading: Reading) -> None:
    """Raise unless `rename_axes` maps names of axes of the model to strings."""
    table: Any = reading.rename_axes
    parts = (place.form.parts for place, _ in reading.entries.values())
    names = add_bases(set(itertools.chain.from_iterable(parts)))
    if not isinstance(table, Mapping) or not _are_strings((*table, *table.values())):
        problem = f"rename_axes must be a dict from names of the model to names of the state dict, not {table!r}"
        hint = 'write rename_axes={"embed": "hidden"}'
        raise OperandError(message(reading.function, problem, hint=hint))
    for name in table:
        if name not in names:
            problem = f"rename_axes has {name!r}, which no array of the model has"
            there = f"axes of the model: {', '.join(sorted(names))}"
            near = suggestion(name, names)
            raise ArgumentError(message(reading.function, problem, there, hint=near))


def _are_strings(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _find_form(reading: Reading, flaws: Flaws, key: str, spec: Typed) -> Form | None:
    """Return the stored form of an array, by the axes that it was saved with."""
    place, _ = reading.entries[key]
    axes, shape = axes_of(reading.state, key, spec), tuple(spec.shape)
    given = str(shape) if axes is None else f"saved as {axes_text(axes, shape)}"
    # Axes in another order are no flaw: the form transposes them.
    form = place.form_of(axes, reading.name_there)
    if form is None:
        flaws.add("wrong axes", key, f"{given}, but the model has {place.form.text}")
    elif form.shape != shape or not _same_sizes(axes, form, place.axes):
        flaws.add("wrong shape", key, f"{given}, but the model has {place.form.text}")
    return form


def _same_sizes(axes: StoredAxes | None, form: Form, own: StoredAxes) -> bool:
    """Return whether flattened axes have the sizes of the model; True if a dimension has no name."""
    if axes is None or None in axes or None in own:
        return True
    pairs = itertools.zip_longest(_flatten(axes), _flatten(form.axes))
    return all(one and other and one.size == other.size for one, other in pairs)


def _flatten(axes: StoredAxes | None) -> list[StoredAxis]:
    """List the axes of all dimensions that have names."""
    return list(itertools.chain.from_iterable(dim or () for dim in axes or ()))


def _compare_dtypes(reading: Reading, flaws: Flaws, key: str, given: DTypeLike) -> None:
    place, _ = reading.entries[key]
    dtype = place.array.dtype
    if given == dtype:
        return
    if not (reading.cast and _find_kind(given) == _find_kind(dtype)):
        flaws.add("wrong dtype", key, f"{given}, but the model has {dtype}")
    # A float that is too large becomes infinite, which shows; an integer would wrap around in silence.
    elif jnp.issubdtype(dtype, jnp.integer):
        least, most = bounds(on_host(reading.state[key]))
        limits = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]  # of jax
        if least < limits.min or most > limits.max:
            room = f"{dtype} has {limits.min} to {limits.max}"
            flaws.add("wrong values", key, f"{least} to {most} in {given}, but {room}")


def bounds(array: NDArray[np.generic]) -> tuple[int, int]:
    """Return the least and the greatest number of an array of integers; zeros if it is empty."""
    if not array.size:
        return 0, 0
    # NumPy does not compare integers of four bits.
    if array.dtype.kind not in "iu":
        array = array.astype(np.int64)
    return int(array.min()), int(array.max())


def _hints(reading: Reading, flaws: Flaws, specs: Specs) -> Iterator[str]:
    """Yield what would work."""
    found = flaws.found
    # A wrong prefix makes all keys missing and unexpected, so that no other hint would help.
    if "missing" in found or "unexpected" in found:
        prefix = _prefix_hint(reading)
        if prefix:
            yield prefix
        elif reading.strict and specs:
            yield "pass strict=False to ignore missing and unexpected keys"
        elif "missing" in found and not reading.strict:
            yield "an abstract model has no arrays to keep: initialise it"
    is_misfit = "wrong axes" in found or "wrong shape" in found
    other = _layout_hint(reading, specs) if is_misfit else None
    if other:
        yield other
    elif "wrong axes" in found:
        yield _axes_hint(reading, [key for key, _ in found["wrong axes"]], specs)
    if any(
        _find_kind(specs[key].dtype) == _find_kind(reading.entries[key][0].array.dtype)
        for key, _ in found.get("wrong dtype", ())
    ):
        yield "pass cast=True to convert dtypes"


def _prefix_hint(reading: Reading) -> str | None:
    """Return the prefix under which most arrays of the model are found, if there is one."""
    prefix = f"{reading.prefix}." if reading.prefix else ""
    names = {key.removeprefix(prefix) for key in reading.entries}
    here = {key.removeprefix(prefix) for key in reading.state if key.startswith(prefix)}
    # Each key of the state dict votes for the prefixes after which it has the name of an array.
    found, count = _find_most_frequent(_find_starts(reading.state, names))
    if count and (reading.prefix or "") in found:
        return None
    if count * 2 > len(names):
        if len(found) > 1:
            return f"there are {len(found)} prefixes with such keys; pass one of them, as in prefix={found[0]!r}"
        there, call = "without a prefix", "leave the prefix out"
        if found[0]:
            there, call = f"after {found[0]!r}", f"pass prefix={found[0]!r}"
        return f"{call}: {count} of {len(names)} keys are there {there}"
    # Or the model is a part of a larger tree, and the file lacks the names of that tree.
    found, count = _find_most_frequent(filter(None, _find_starts(names, here)))
    if count * 2 > len(names):
        shorter = f"pass rename=lambda key: key.removeprefix({f'{found[0]}.'!r})"
        return f"{shorter}: {count} of {len(names)} keys are there without it"
    return None


def _find_starts(keys: Iterable[str], names: Container[str]) -> Iterator[str]:
    """Yield each prefix of a key after which one of the names remains."""
    for key in keys:
        for start, rest in _split_key(key):
            if rest in names:
                yield start


def _find_most_frequent(values: Iterable[str]) -> tuple[list[str], int]:
    """Return the most frequent values, and how often each of them occurs."""
    counts = Counter(values)
    most = max(counts.values(), default=0)
    return [value for value, count in counts.items() if count == most], most


def _split_key(key: str) -> Iterator[tuple[str, str]]:
    """Yield each prefix of a key, also the empty one, and the rest of the key after it."""
    yield "", key
    at = key.find(".")
    while at >= 0:
        yield key[:at], key[at + 1 :]
        at = key.find(".", at + 1)


def _axes_hint(reading: Reading, keys: Iterable[str], specs: Specs) -> str:
    """Return a hint for arrays saved with other names: pair names that only one side has, if all arrays agree."""
    table: dict[str, str] = {}
    certain = True
    for key in keys:
        place, _ = reading.entries[key]
        there = _flatten(axes_of(reading.state, key, specs[key]))
        own = _flatten(place.axes)
        # `pop` leaves in `others` the axes that only the file has.
        others = {axis.name: axis for axis in there}
        left = [axis for axis in own if others.pop(reading.name_there(axis.name), None) is None]
        certain = certain and len(left) == len(others)
        for mine, other in zip(left, others.values(), strict=False):
            is_same = table.setdefault(mine.name, other.name) == other.name
            certain = certain and is_same and mine.size == other.size
    # Sizes alone would pair axes that have nothing in common, so that one doubt ends it.
    certain = certain and len(set(table.values())) == len(table) > 0
    comparison = "numpy.asarray(array) of a value has no names to compare"
    if not certain:
        return comparison
    table = {**reading.rename_axes, **table}
    return f"if these are the same axes, pass rename_axes={table}; {comparison}"


def _layout_hint(reading: Reading, specs: Specs) -> str | None:
    """Return a hint with the other reading that fits most arrays, if it fits more than this one."""
    # This reading may fit most arrays already, and a few may be wrong for another reason.
    most, call = _count_fits(reading, reading.entries, specs), None
    for rival in reading.rivals:
        count = _count_fits(reading, rival.entries(), specs)
        if count > most:
            most, call = count, rival.call
    return call and f"{call}: {most} of {len(specs)} arrays fit then"


def _count_fits(reading: Reading, entries: Entries, specs: Specs) -> int:
    """Count the arrays that fit the entries with the same keys."""
    forms = (
        (entries[key][0].form_of(axes_of(reading.state, key, spec), reading.name_there), spec)
        for key, spec in specs.items()
    )
    return sum(form is not None and form.shape == tuple(spec.shape) for form, spec in forms)


def _require_use(reading: Reading, forms: Mapping[str, Form], extra: list[str]) -> None:
    """Raise if nothing is loaded; warn if there are both arrays without a key and keys without an array."""
    total = len(reading.entries)
    absent = [key for key in reading.entries if key not in forms]
    if not absent:
        return
    # Adapters may be missing on purpose. But it is hardly intended that nothing is loaded, or that keys are left over
    # too.
    near = suggestion(absent[0], extra)
    hint = _prefix_hint(reading) or (near and f"for {absent[0]!r}: {near}")
    own, others = _shorten(absent), _shorten(extra or list(reading.state))
    if not forms:
        problem = (
            f"nothing would be loaded: the state dict has none of the {total} arrays of the model"
        )
        lines = (f"the model has: {own}", f"the state dict has: {others}")
        raise ArgumentError(message(reading.function, problem, *lines, hint=hint))
    if extra:
        problem = (
            f"{len(absent)} of {total} arrays stay as they are, and {len(extra)} keys are not used"
        )
        text = message(
            reading.function, problem, f"they stay: {own}", f"not used: {others}", hint=hint
        )
        warnings.warn(text, stacklevel=5)


def _shorten(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return (", ".join(keys[:3]) or "nothing") + more


def _warn_of_squares(reading: Reading, specs: Specs) -> None:
    """Warn of arrays of torch whose shapes fit the model, but whose axes have another order in the layouts of torch."""
    # Only results of `to_state_dict` have `spec`: they are not from torch.
    if reading.torch is None or getattr(reading.state, "spec", None) is not None:
        return
    of_torch = [key for key, spec in specs.items() if _is_of_torch(spec, reading.state[key])]
    if not of_torch:
        return
    entries = reading.torch.entries()
    squares = [
        key for key in of_torch if _differs(reading.entries[key][0].form, entries[key][0].form)
    ]
    if squares:
        problem = f"{len(squares)} arrays, which seem to be from torch, fit in its layout as well, with axes exchanged"
        hint = f"{reading.torch.call}; or pass layouts={{}} to read them as they are"
        warnings.warn(
            message(reading.function, problem, f"they are: {_shorten(squares)}", hint=hint),
            stacklevel=5,
        )


def _is_of_torch(spec: Typed, value: Payload) -> bool:
    of_file = isinstance(spec, StoredArray) and spec.is_foreign
    return of_file or type(value).__module__.partition(".")[0] == "torch"


def _differs(one: Form, other: Form) -> bool:
    """Return whether two forms have the same shape, but another order of elements."""

    def list_stored(form: Form) -> list[tuple[str, bool]]:
        return [(axis.name, axis.flipped) for axis in _flatten(form.axes) if axis.size > 1]

    return one.shape == other.shape and list_stored(one) != list_stored(other)


def _find_kind(dtype: DTypeLike) -> object:
    """Return the kind of numbers of a dtype; dtypes of one kind convert to each other."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((kind for kind in kinds if jnp.issubdtype(dtype, kind)), dtype)
