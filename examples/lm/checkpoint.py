"""Checkpoints of a run: whole or absent whenever it stops, checked by the names of axes, read into any layout.

Orbax writes them, while training goes on. Beside the arrays are the names and sizes of their axes: an array whose axes
have another order is transposed, and all else that differs is listed in one error.
"""

import json
import logging
import shutil
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import axonym as axn
from axonym import NamedArray

T = TypeVar("T")
# How orbax and tensorstore say that something could not be written.
FAILURES = (OSError, ValueError, RuntimeError)


class DamagedError(Exception):
    """A checkpoint cannot be read, or has other numbers than were written."""


class Form(NamedTuple):
    """The description of an array that a checkpoint keeps beside its numbers.

    Attributes:
        axes: names and sizes, in the order of its dimensions.
        dtype: its name.
    """

    axes: list[tuple[str, int]]
    dtype: str

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes) or "a number"


# Each save would be told in a dozen lines, and one that fails in hundreds.
logging.getLogger("absl").setLevel(logging.CRITICAL)


class Checkpoints:
    """The checkpoints in a folder, by the number of steps that were taken.

    Args:
        folder: is made if need be.
        keep: how many of the last ones are kept.
        keep_every: those of every so many steps are kept, too.

    Raises:
        OSError: if the folder cannot be written.
    """

    def __init__(self, folder: Path, keep: int = 2, keep_every: int | None = None) -> None:
        self._folder = folder.absolute()
        self._under_way: int | None = None
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{jax.process_index()}"
        probe.write_text("")
        probe.unlink()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, keep_period=keep_every, cleanup_tmp_directories=True, enable_async_checkpointing=True
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self._folder / str(step)

    def latest(self) -> int | None:
        """Return the number of steps of the last whole checkpoint; one that is being written is waited for."""
        self.wait()
        return self._manager.latest_step()

    def set_aside(self, step: int) -> Path:
        """Rename the folder of a damaged checkpoint, so that the one before it is the last."""
        damaged = self._folder / f"damaged-{step}"
        shutil.rmtree(damaged, ignore_errors=True)
        self.path(step).rename(damaged)
        self._manager.reload()
        return damaged

    def save(self, step: int, state: Any, about: Mapping[str, Any], *, wait: bool = False) -> None:
        """Save a state; training may go on, and the state be donated, as soon as this returns.

        Where it fails, as on a full disk, a warning is printed and the checkpoints before it stay.

        Args:
            step: the number of steps that were taken.
            state: a tree of arrays.
            about: what else to keep, as JSON.
            wait: until it is on the disk.
        """
        self.wait()
        arrays, forms = flattened(state)
        sums = {path: int(checksum(array)) for path, array in arrays.items()}
        told = {**about, "forms": forms, "sums": {path: int(own) for path, own in sums.items()}}
        told = ocp.args.JsonSave({**told, "sum": text_sum(told)})
        kept = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), about=told)
        self._under_way = step
        try:
            self._manager.save(step, args=kept, force=wait)
        except FAILURES as error:
            self._failed(error)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until what was saved is on the disk; where it failed, a warning is printed."""
        try:
            self._manager.wait_until_finished()
        except FAILURES as error:
            self._failed(error)
        self._under_way = None

    def _failed(self, error: Exception) -> None:
        step, self._under_way = self._under_way, None
        reason = str(error).partition(" [source locations")[0][:300]
        print(f"warning: no checkpoint of step {step}, the run goes on: {reason}", file=sys.stderr)
        if jax.process_index() == 0:
            # The unfinished files would take room on a disk that may be full.
            for part in self._folder.glob(f"{step}.orbax-checkpoint-tmp*"):
                shutil.rmtree(part, ignore_errors=True)

    def about(self, step: int) -> dict[str, Any]:
        """Return what was kept beside the arrays.

        Raises:
            DamagedError: if it cannot be read.
        """
        told: dict[str, Any] = self._read(step, about=ocp.args.JsonRestore())
        # Checkpoints of earlier releases have no sums.
        if (own := told.pop("sum", None)) is not None and own != text_sum(told):
            raise DamagedError("what is kept beside the arrays changed on the disk")
        return told

    def restore(self, step: int, template: T, shardings: Any) -> T:
        """Return a saved state.

        Args:
            step: the number of steps of the checkpoint.
            template: a tree of its structure, which may be abstract.
            shardings: a tree of the same structure that says where each array goes.

        Raises:
            ValueError: if arrays are missing or unexpected, or have other axes or dtypes.
            DamagedError: if an array cannot be read, or is not the one that was written.
        """
        wanted, own = flattened(template)
        about = self.about(step)
        saved = {path: Form([(*axis,) for axis in axes], dtype) for path, (axes, dtype) in about["forms"].items()}
        compare(step, own, saved)
        places = dict(zip(wanted, jax.tree.leaves(shardings), strict=True))
        orders = {path: order(own[path], saved[path]) for path in wanted}
        asked = {path: as_saved(spec, places[path], orders[path]) for path, spec in wanted.items()}
        arrays = self._read(step, arrays=ocp.args.StandardRestore(asked))
        sums = {path: int(checksum(array)) for path, array in arrays.items()}
        if changed := [path for path, one in about.get("sums", {}).items() if sums[path] != one]:
            raise DamagedError(f"{', '.join(changed)} changed on the disk")
        leaves = [ordered(arrays[path], orders[path], places[path]) for path in wanted]
        return jax.tree.unflatten(jax.tree.structure(template), leaves)

    def close(self) -> None:
        """Wait until all is on the disk."""
        self.wait()
        self._manager.close()

    def _read(self, step: int, **args: Any) -> Any:
        """Read one item of a checkpoint."""
        try:
            ((_, found),) = self._manager.restore(step, args=ocp.args.Composite(**args)).items()
        except Exception as error:  # orbax raises no class of its own for files that are cut or missing
            raise DamagedError(str(error).partition(" [source locations")[0][:300]) from error
        return found


def text_sum(about: Mapping[str, Any]) -> int:
    """Return a checksum of what is kept as JSON."""
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


@jax.jit
def checksum(x: jax.Array) -> jax.Array:
    """Return a sum of the bits of an array that any flipped bit changes, and no layout.

    Each word counts an odd number of times, which differs between neighbours: so a flipped bit changes the sum, as do
    exchanged words. The order of additions of integers does not matter, so devices add what they hold.
    """
    x = x.astype(jnp.uint8) if x.dtype == bool else x
    words = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}"))
    times = jnp.zeros(words.shape, jnp.uint32)
    for dimension, size in enumerate(words.shape):
        times = times * size + jax.lax.broadcasted_iota(jnp.uint32, words.shape, dimension)
    return jnp.sum(words.astype(jnp.uint32) * (2 * times + 1), dtype=jnp.uint32)


def flattened(tree: Any) -> tuple[dict[str, Any], dict[str, Form]]:
    """Return the arrays of a tree by path, and their forms; dimensions without names are numbered."""
    arrays: dict[str, Any] = {}
    forms: dict[str, Form] = {}
    for keys, leaf in jax.tree.leaves_with_path(tree, is_leaf=axn.is_named_array):
        if not jax.tree.leaves(leaf):  # names of a parameter that this part of an optimiser leaves to another one
            continue
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        array = leaf.array if isinstance(leaf, NamedArray) else leaf
        names = leaf.names if isinstance(leaf, NamedArray) else [f"dimension {i}" for i in range(array.ndim)]
        arrays[path] = array
        forms[path] = Form(list(zip(names, array.shape, strict=True)), str(array.dtype))
    return arrays, forms


def compare(step: int, own: Mapping[str, Form], saved: Mapping[str, Form]) -> None:
    """Raise unless all arrays are there, with the same axes in some order and the same dtypes."""
    flaws = [f"missing: {path}: {form}" for path, form in own.items() if path not in saved]
    flaws += [f"unexpected: {path}: {form}" for path, form in saved.items() if path not in own]
    for path in (path for path in own if path in saved):
        mine, theirs = own[path], saved[path]
        if sorted(mine.axes) != sorted(theirs.axes):
            flaws.append(f"other axes: {path}: saved as {theirs}, but the model has {mine}")
        elif mine.dtype != theirs.dtype:
            flaws.append(f"other dtype: {path}: saved as {theirs.dtype}, but the model has {mine.dtype}")
    if flaws:
        more = [f"and {len(flaws) - 20} more"] if len(flaws) > 20 else []
        lines = "\n  ".join(flaws[:20] + more)
        raise ValueError(f"the checkpoint of step {step} does not fit the model:\n  {lines}")


def order(own: Form, saved: Form) -> list[int]:
    """Return the places in an array of the axes as they were saved."""
    names = [name for name, _ in own.axes]
    return [names.index(name) for name, _ in saved.axes]


def as_saved(spec: Any, sharding: jax.sharding.NamedSharding, places: list[int]) -> jax.ShapeDtypeStruct:
    """Describe an array in the order of axes in which it was saved, each on its mesh axes."""
    entries = [*sharding.spec, *[None] * (len(spec.shape) - len(sharding.spec))]
    moved = jax.sharding.NamedSharding(sharding.mesh, jax.P(*(entries[at] for at in places)))
    return jax.ShapeDtypeStruct([spec.shape[at] for at in places], spec.dtype, sharding=moved)


def ordered(array: jax.Array, places: list[int], sharding: jax.sharding.Sharding) -> jax.Array:
    """Undo an order of axes."""
    if places == sorted(places):
        return array
    back = [places.index(at) for at in range(len(places))]
    return jax.jit(lambda x: x.transpose(back), out_shardings=sharding)(array)
