"""Internal. Run the computations of Optax on Auto axes if the mesh has Explicit ones."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, use_abstract_mesh

from ..base.kinds import Payload, Tree, type_text
from ..errors import OperandError, message
from ..layout import explicit

Transformation: TypeAlias = Any
"""An `optax.GradientTransformation`."""


def check_transformation(function: str, tx: object) -> None:
    """Raise OperandError unless `tx` is a transformation; `optax.adam` without a learning rate is not."""
    if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
        problem = f"expected a transformation of Optax, got {type_text(tx)}"
        raise OperandError(message(function, problem, hint="write optax.adam(1e-3)"))


@jax.named_scope("optimizer")
def run_on_auto(fn: Callable[..., Any], args: Any, extra: Mapping[str, Any], like: Tree) -> Any:
    """Call a function on Auto axes, if arrays have Explicit ones; results get the layouts of other arrays.

    A cost reports this work under the name of the scope.

    Args:
        fn: a function of trees.
        args: its arguments, parameters last.
        extra: further ones; functions of parameters are called on Explicit axes again.
        like: a tree with the structure of the results: arrays with the layouts of the results, or None.
    """
    arrays = {name: value for name, value in extra.items() if not callable(value)}
    typed = next(filter(explicit.has_explicit_axes, jax.tree.leaves((args, arrays))), None)
    if typed is None:
        return fn(*args, **extra)
    mesh = explicit.mesh_of_type(typed)

    def sharding(x: Payload) -> NamedSharding:
        is_typed = x is not None and explicit.has_explicit_axes(x)
        return NamedSharding(mesh, jax.typeof(x).sharding.spec if is_typed else PartitionSpec())

    def on_explicit_axes(call: Callable[..., Any]) -> Callable[..., Any]:
        of_model = jax.tree.map(sharding, args[-1])
        typed_call: Callable[..., Any] = jax.sharding.explicit_axes(call, in_sharding=(of_model,))
        return typed_call

    functions = {name: on_explicit_axes(call) for name, call in extra.items() if callable(call)}

    def run(args: Any, arrays: dict[str, Any]) -> Any:
        return fn(*args, **arrays, **functions)

    out = jax.tree.map(sharding, like, is_leaf=lambda x: x is None)
    entered: AbstractContextManager[Any] = nullcontext()
    if jax.sharding.get_abstract_mesh().empty:  # a counter that is made there has to know its mesh
        is_traced = isinstance(typed, Tracer)
        entered = use_abstract_mesh(mesh) if is_traced else jax.set_mesh(typed.sharding.mesh)
    with entered:
        return explicit.make_auto(run, mesh, out)(args, arrays)
