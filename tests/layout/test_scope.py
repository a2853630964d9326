import axonym as axn
from axonym.layout import scope


def test_a_scope_knows_the_axes_of_its_arguments_and_of_the_maps_and_loops_inside() -> None:
    mappings = axn.Mappings({"embed": "model"}, {"batch": "data"})
    own = scope.Scope(mappings, frozenset({("batch", 8), ("embed", 4)}))
    assert own.names == {"batch", "embed"}
    assert own.is_data(("batch", "embed"))
    assert not own.is_data(("embed",))
    with scope.SCOPE.using(own):
        assert not own.is_in_data
        with scope.hiding(("embed",)), scope.hiding(("batch",), loop="scan"):
            inner = scope.current_scope()
            assert inner is not None
            assert (inner.hidden, inner.looped) == ({"embed"}, {"batch"})
            assert inner.is_in_data
            # a loop may carry a sum over rows, and a map returns each row
            assert (inner.rows, inner.axes_of_rows) == ({"embed"}, {"model"})
        with scope.hiding(("batch",), loop="map"):
            inner = scope.current_scope()
            assert inner is not None
            assert (inner.looped, inner.axes_of_rows) == ({"batch"}, {"data"})
    with scope.hiding(("batch",)):
        assert scope.current_scope() is None
