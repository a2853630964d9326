"""Internal. The tree or the call of a report, with abstract arrays on a mesh of any size.

`check` and `axonym.costs` use this to read calls. This module computes nothing, and knows no mapping.
"""

import functools
import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from ..base.kinds import Payload, Tree
from ..errors import OperandError, message
from ..layout import assignment, modes
from ..partitioning.jit import NamedJit


class Call(NamedTuple):
    """A function with arguments, or a tree without any.

    Attributes:
        target: the function or the tree.
        args: the arguments by position.
        kwargs: the arguments by name.
        is_method: whether the first argument is the owner of a method.
    """

    target: Tree
    args: tuple[Tree, ...]
    kwargs: dict[str, Tree]
    is_method: bool

    @property
    def name(self) -> str:
        """The name of the function, or of the type of the tree."""
        named = getattr(self.target, "func", self.target)  # of a method
        return str(getattr(named, "__name__", type(named).__name__))

    @property
    def is_traced(self) -> bool:
        """Whether this is a call of a function; a module without arguments is a tree, although it is callable."""
        if self.args or self.kwargs:
            return True
        target = self.target
        is_bound = isinstance(target, functools.partial | eqx.Partial) or hasattr(
            target, "__func__"
        )
        is_alone = is_bound or hasattr(target, "__wrapped__") or jax.tree_util.all_leaves([target])
        return callable(target) and is_alone

    def owner(self) -> tuple[str, Tree]:
        """Return the instance of a method, else the function itself, and its path in the function."""
        fn = self.target
        # Equinox wraps the methods of modules so that they are trees.
        if isinstance(fn, jax.tree_util.Partial) and len(fn.args) == 1 and not fn.keywords:
            owner = fn.args[0]
        else:
            owner = getattr(fn, "__self__", fn)
        for keys, part in jax.tree.leaves_with_path(fn, is_leaf=lambda part: part is owner):
            if part is owner:
                return assignment.path_text(keys), owner
        return "", owner

    def by_parameter(self) -> dict[str, tuple[str, Tree]]:
        """Return arguments and their paths by parameter name; a wrong call fails when it is traced."""
        given = {**{str(i): value for i, value in enumerate(self.args)}, **self.kwargs}
        places = [str(i) for i in range(len(self.args))]
        # Paths are bound, and not values, so that those of `*args` and `**kwargs` say which argument they were.
        try:
            bound = inspect.signature(self.target).bind(
                *places, **{key: key for key in self.kwargs}
            )
        except (TypeError, ValueError):
            return {path: (path, value) for path, value in given.items()}
        found: dict[str, tuple[str, Tree]] = {}
        for name, below in bound.arguments.items():
            for keys, path in jax.tree.leaves_with_path(below):
                found[join_path(name, assignment.path_text(keys))] = path, given[path]
        return found


def unwrapped(fn: object, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Call:
    """Unwrap a named_jit, whose own mappings do not matter here; a bound instance becomes the first argument."""
    is_method = False
    # A method that `named_jit` decorates is a partial with its owner.
    if isinstance(fn, functools.partial) and isinstance(fn.func, NamedJit):
        bound = fn
        is_method = len(bound.args) == 1 and not bound.keywords
        fn, args, kwargs = bound.func, (*bound.args, *args), {**bound.keywords, **kwargs}
    if isinstance(fn, NamedJit):
        fn = vars(fn)["__wrapped__"]
    return Call(fn, args, kwargs, is_method)


def abstract_mesh(mesh: object, function: str = "check") -> AbstractMesh:
    """Return a mesh without devices.

    Raises:
        OperandError: if it is neither a mesh nor a dict of sizes.
    """
    if isinstance(mesh, Mesh):
        abstract: AbstractMesh = mesh.abstract_mesh
        return abstract
    if isinstance(mesh, AbstractMesh):
        return mesh
    if not isinstance(mesh, Mapping) or not all(map(_is_size, mesh.values())):
        problem = f"a mesh must be a Mesh, an AbstractMesh or a dict of sizes, not {mesh!r}"
        raise OperandError(message(function, problem, hint='write {"data": 64, "model": 8}'))
    return modes.make_mesh({axis: int(size) for axis, size in mesh.items()}, "Auto")


def _is_size(size: object) -> bool:
    return isinstance(size, int | np.integer) and int(size) > 0


def is_array(leaf: object) -> bool:
    """Return whether a leaf is an array, perhaps an abstract one."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def abstract_array(array: Payload) -> jax.ShapeDtypeStruct:
    """Return an array without values, as JAX sees it."""
    if isinstance(array, np.ndarray | np.generic):  # float64 may be float32 to JAX
        array = jax.typeof(array)
    is_weak = getattr(array, "weak_type", False)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=is_weak)


def get_memory_kind(array: Payload) -> str:
    """Return the kind of host memory that holds an array; an empty string if device memory holds it."""
    kind = getattr(getattr(array, "sharding", None), "memory_kind", None)
    # Devices have several kinds of their own.
    return kind if kind is not None and "host" in kind and kind != _find_default(array) else ""


def _find_default(array: Payload) -> str:
    """Return the default kind of memory of the devices; on CPUs, some versions of JAX call it a kind of host memory."""
    mesh = getattr(array.sharding, "mesh", None)
    return str(mesh.devices.flat[0].default_memory().kind) if isinstance(mesh, Mesh) else ""


def join_path(*paths: str) -> str:
    """Join the parts of a path that are not empty."""
    return ".".join(filter(None, paths))


def place_of(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback of an error."""
    ours = {"axonym", "jax", "jaxlib", "equinox", "contextlib", "functools"}
    # From the inside out: the last line that is neither ours nor JAX's is the one to change.
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ours:
            code = frame.f_code
            return f"{code.co_name}, {Path(code.co_filename).name} line {line}"
    return "JAX"
