"""A list of layers and functions that are applied one after another (`Sequential`)."""

from collections.abc import Callable, Iterator, Sequence

import equinox as eqx
import jax

from ..array import NamedArray
from ..base.kinds import type_text
from ..errors import OperandError, message
from .layer import Layer

__all__ = ["Sequential"]


class Sequential(Layer):
    """Apply layers and functions one after another.

    Layers of one kind compile faster in a `Stacked`.

    Attributes:
        layers: modules, which get a key each where a key is given, and plain functions of one array.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=4, mlp=8)
        >>> k1, k2 = jax.random.split(jax.random.key(0))
        >>> up, down = axn.nn.Linear.init(Embed, Mlp, key=k1), axn.nn.Linear.init(Mlp, Embed, key=k2)
        >>> axn.nn.Sequential([up, axn.nn.gelu, down])(axn.ones(Embed)).shape
        {'embed': 4}
    """

    layers: tuple[Callable[..., NamedArray], ...]

    def __init__(self, layers: Sequence[Callable[..., NamedArray]]) -> None:
        for layer in layers:
            if not callable(layer):
                problem = f"a layer must be a module or a function, not {type_text(layer)}"
                raise OperandError(message("Sequential", problem))
        self.layers = tuple(map(_without_leaf, layers))

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Callable[..., NamedArray]]:
        return iter(self.layers)

    def __getitem__(self, i: int) -> Callable[..., NamedArray]:
        return self.layers[i]

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layers to `x`.

        Args:
            x: the input of the first layer.
            key: split between the modules; functions get none.

        Returns:
            The result of the last layer; `x` itself if there are no layers.
        """
        # Functions get no key, so one more function between two layers changes no random numbers.
        modules = [isinstance(layer, eqx.Module) for layer in self.layers]
        keys = iter(() if key is None else jax.random.split(key, sum(modules)))
        for layer, is_module in zip(self.layers, modules, strict=True):
            x = layer(x, key=next(keys)) if is_module and key is not None else layer(x)
        return x


def _without_leaf(layer: Callable[..., NamedArray]) -> Callable[..., NamedArray]:
    """Make a function part of the structure of the tree; as a leaf, transformations would reject it."""
    return jax.tree_util.Partial(layer) if jax.tree_util.all_leaves([layer]) else layer
