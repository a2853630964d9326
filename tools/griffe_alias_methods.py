"""Show NamedArray's table of methods in the docs: `sum = reduce.sum` becomes the method `sum`.

Griffe reads the sources without running them, and takes such a line for an attribute. Nor does it see the examples that
elementwise operations get when they are imported.
"""

import copy
from typing import Any

import griffe

from axonym.ops.examples import EXAMPLES

ELEMENTWISE = {"axonym.ops.elementwise", "axonym.ops.logical", "axonym.ops.special"}


class AliasMethods(griffe.Extension):
    """Replace each class attribute whose value is a function of the package by a copy of that function."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through all classes once the whole package is read, so that every function is known."""
        self._visit(pkg)

    def _visit(self, scope: griffe.Module | griffe.Class) -> None:
        for name, member in list(scope.members.items()):
            if isinstance(member, griffe.Module | griffe.Class):
                self._visit(member)
            elif scope.path in ELEMENTWISE and name in EXAMPLES and member.docstring:
                member.docstring.value += EXAMPLES[name].replace("\n    ", "\n").rstrip()
            elif scope.is_class and isinstance(member, griffe.Attribute):
                target = _function(member)
                if target is not None:
                    method = copy.copy(target)
                    method.name = name
                    method.lineno = member.lineno  # keeps the order of the table
                    scope.set_member(name, method)


def _function(attribute: griffe.Attribute) -> griffe.Function | None:
    if not isinstance(attribute.value, griffe.ExprName | griffe.ExprAttribute):
        return None
    try:
        target = attribute.modules_collection[attribute.value.canonical_path]
        target = target.final_target if isinstance(target, griffe.Alias) else target
    except (KeyError, griffe.AliasResolutionError):
        return None
    return target if isinstance(target, griffe.Function) else None
