"""Which named axis makes a collective necessary, in texts of programs."""

import pytest
from jax.sharding import PartitionSpec

from axonym.costs.compiled.attribution import Attribution
from axonym.costs.compiled.program import Program
from axonym.costs.shared.names import NameTable
from axonym.partitioning import TARGETS
from axonym.report.show import ArrayLayout

MESH = (("data", 4), ("model", 2))
COMPUTED = {"batch": ("data",), "heads": ("model",), "mlp": ("model",), "pos": ("data", "model")}
STORED = {"layers": ("model",), "embed": ("data",), "heads": ("model",), "mlp": ("model",)}
SIZES = {"batch": {32}, "embed": {16}, "heads": {4}, "mlp": {64}, "vocab": {100}, "layers.stage": {4}}
TEXT = """HloModule jit_f, num_partitions=8

ENTRY %main (w: f32[4,32], x: f32[8,16], y: f32[8,32]) -> f32[8] {
  %w = f32[4,32]{1,0} parameter(0), metadata={op_name="model_mlp_up_weight"}
  %x = f32[8,16]{1,0} parameter(1)
  %y = f32[8,32]{1,0} parameter(2)
  %dot = f32[8,16]{1,0} dot(%y, %y), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %it = COLLECTIVE, metadata={op_name="SOURCE"}
}
"""
OVER_BOTH = "replica_groups=[1,8]<=[8]"
NEXT = "source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}"
OVER_DATA, OVER_MODEL = "replica_groups=[2,4]<=[4,2]T(1,0)", "replica_groups=[4,2]<=[8]"


def layout(path, names, shape):
    return ArrayLayout(path, names, shape, "float32", PartitionSpec())


ARGUMENTS = {
    "model_mlp_up_weight": layout("model.mlp.up.weight", ("embed", "mlp"), (16, 64)),
    "model_attention_out_weight": layout("model.attention.out.weight", ("heads", "embed"), (4, 16)),
    "model_head": layout("model.head", ("embed", "vocab"), (16, 100)),
}


def attributed(text, computed=COMPUTED, of_parameters=frozenset()):
    sizes = {name: frozenset(several) for name, several in SIZES.items()}
    named = NameTable(MESH, computed, STORED, sizes, ARGUMENTS, of_parameters)
    (found,) = Attribution(Program(text), named, TARGETS["v5e"]).find_collectives()
    return found


@pytest.mark.parametrize(
    ("collective", "source", "axis", "layer"),
    [
        # A parameter is gathered, though the batch lies on the same mesh axis.
        (f"f32[16,32]{{1,0}} all-gather(%w), {OVER_DATA}, dimensions={{0}}", "jit(f)/add", "embed", "up"),
        # An activation is: of the sizes, only that of the batch fits.
        (f"f32[32,16]{{1,0}} all-gather(%x), {OVER_DATA}, dimensions={{0}}", "jit(f)/add", "batch", ""),
        # A sum is one over what the computation splits.
        (f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_DATA}", "jit(f)/jvp(mlp)/add", "batch", "mlp"),
        # Two axes lie on `model`: the layer has one of them, and otherwise the product sums over one of them.
        (
            f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_MODEL}",
            "jit(f)/jvp(attention)/out/dot_general",
            "heads",
            "attention.out",
        ),
        (f"f32[8,16]{{1,0}} all-reduce(%dot), {OVER_MODEL}", "jit(f)/dot_general", "mlp", ""),
        (f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_MODEL}", "jit(f)/add", "unattributed", ""),
        # A layer may begin with the class of a module that nobody holds by a name.
        (
            f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_MODEL}",
            "jit(f)/jvp(Stack)/while/body/attention/out/dot_general",
            "heads",
            "Stack.attention.out",
        ),
        # One axis lies on both mesh axes.
        (f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_BOTH}", "jit(f)/add", "pos", ""),
        # What goes from one stage of a pipeline to the next does so because of the layers.
        (f"f32[8,16]{{1,0}} collective-permute(%x), {NEXT}", "jit(f)/add", "layers", ""),
    ],
)
def test_reasons(collective, source, axis, layer):
    found = attributed(TEXT.replace("COLLECTIVE", collective).replace("SOURCE", source))
    assert (found.axis, found.layer) == (axis, layer)


def test_a_sum_over_two_axes_with_a_mesh_axis_each():
    text = TEXT.replace("COLLECTIVE", f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_BOTH}")
    computed = {"batch": ("data",), "mlp": ("model",)}
    assert attributed(text, computed).axes == ("batch", "mlp")
    # Two axes lie on `model`.
    assert attributed(text, computed | {"heads": ("model",)}).axes == ()


def test_a_layer_sums_over_no_axis_that_parameters_of_others_have():
    text = TEXT.replace("COLLECTIVE", f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_DATA}")
    text = text.replace("SOURCE", "jit(f)/jvp(head)/add")
    computed = {"batch": ("data",), "layers": ("data",)}
    assert attributed(text, computed).axes == ()
    assert attributed(text, computed, frozenset({"layers", "embed"})).axes == ("batch",)


def test_after_the_gradient_parameters_are_what_is_split():
    text = TEXT.replace("COLLECTIVE", f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_DATA}")
    text = text.replace("SOURCE", "jit(f)/reduce_sum")
    text = text.replace(
        "rhs_contracting_dims={1}", 'rhs_contracting_dims={1}, metadata={op_name="transpose(jvp())/dot"}'
    )
    found = attributed(text)
    assert (found.axis, found.phase) == ("embed", "other")


def test_the_parts_of_an_exchange_are_one():
    exchange = f"(f32[8,16]{{1,0}}, f32[8,16]{{1,0}}) all-to-all(%x, %x), {OVER_MODEL}"
    found = attributed(TEXT.replace("COLLECTIVE", exchange).replace("SOURCE", "jit(f)/add"))
    assert (found.count, found.shape, found.nbytes) == (1, (2, 8, 16), 2 * 8 * 16 * 4)
    assert found.sent == 8 * 16 * 4


def test_a_transposed_array_is_no_gradient():
    text = TEXT.replace(
        "%dot = f32[8,16]{1,0} dot(%y, %y), lhs_contracting_dims={1}", "%t = f32[32,8]{1,0} transpose(%y)"
    )
    text = text.replace("COLLECTIVE", f"f32[8,16]{{1,0}} all-reduce(%x), {OVER_DATA}")
    assert attributed(text.replace("SOURCE", "jit(f)/reduce_sum")).phase == "forward"
