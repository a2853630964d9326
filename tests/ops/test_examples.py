"""Each elementwise operation has an example; `tests/docs` runs them."""

import pytest

from axonym.ops import elementwise, examples, logical, special

MODULES = [elementwise, logical, special]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_elementwise_operation_has_one_example(module: object) -> None:
    docs = {name: getattr(module, name).__doc__ for name in module.__all__}
    assert [name for name, doc in docs.items() if doc.count("Examples:") != 1] == []


def test_every_row_of_the_table_is_shown() -> None:
    assert set(examples.EXAMPLES) <= {name for module in MODULES for name in module.__all__}
