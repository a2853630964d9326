"""Optimisers that know the axes: transformations of Optax, matrix by matrix, and on meshes with Explicit axes.

Optax sees arrays, and some of its transformations work with their shapes. Their result then depends on whether there is
a layer axis, on the order of axes, and on whether heads have their own axis. The functions here reshape each parameter
for Optax by the roles of its axes, see `axonym.parameters.roles`. State and updates have the axes of the parameters, so
they are sharded, saved and resumed like them.
"""

from .spread import *
from .wrappers import *
