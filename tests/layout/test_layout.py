from jax.sharding import PartitionSpec

from axonym.layout.layout import Layout, replicate

P = PartitionSpec


def test_a_layout_and_a_spec_of_jax_say_the_same() -> None:
    for spec in (P(), P("data"), P(None, "data"), P(("data", "model"), None)):
        assert Layout.from_spec(spec).spec == spec
    assert Layout.from_spec(P("data"), 3) == (("data",), (), ())
    assert Layout.from_spec(P(P.UNCONSTRAINED, "data")) == ((), ("data",))
    assert replicate(2).spec == P(None, None)


def test_the_last_dimensions_of_a_layout_have_names() -> None:
    layout = Layout([(), ("data", "model"), ("expert",)])
    assert layout.by_name(("batch", "embed")) == {"batch": ("data", "model"), "embed": ("expert",)}
    assert layout.mesh_axes == {"data", "model", "expert"}
    assert layout.only({"model", "expert"}) == ((), ("model",), ("expert",))
    assert layout.without({"model"}) == ((), ("data",), ("expert",))
    assert layout.replace(0, ("pipe",)) == (("pipe",), ("data", "model"), ("expert",))
