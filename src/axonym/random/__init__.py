"""Random named arrays. Values depend on the key and the axes only, never on the layout.

Results are sharded by the current axis mapping, so that no device ever holds a complete large parameter. Each
function draws the same numbers as its namesake in `jax.random`, for the same key and sizes.
"""

import typing as _typing

if not _typing.TYPE_CHECKING:
    from ..base import lazy as _lazy

    __all__, __getattr__, __dir__ = _lazy.names_of("axonym.random")
else:
    from .distributions import *
    from .keys import *
    from .vectors import *
