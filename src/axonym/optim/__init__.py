"""Optimisers that know the axes: transformations of Optax, matrix by matrix, and on meshes with Explicit axes.

Optax sees arrays, and some of its transformations work with their shapes. A layer axis, the order of axes, and heads
that are an axis of their own then change what they do. The functions here hand each parameter to Optax in the form that
its roles give it, see `axonym.parameters.roles`. State and updates have the axes of the parameters, so they are
sharded, saved and resumed like them.
"""

from .spread import *
from .wrappers import *
