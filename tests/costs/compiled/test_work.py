"""Operations and bytes of compiled programs, against closed forms."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from axonym.costs.compiled.program import Program
from axonym.costs.compiled.work import count_amount, count_flops, iterate_amounts
from axonym.costs.shared.places import Place, find_place


def flops(fn, *args):
    program = Program(jax.jit(fn).lower(*args).compile().as_text())
    return sum(amount.flops for amount in iterate_amounts(program))


def test_products_in_loops():
    def f(x, weights):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    assert flops(f, jnp.ones((8, 16)), jnp.ones((5, 16, 16))) == 5 * 2 * 8 * 16 * 16


def test_a_convolution_with_padding():
    def f(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME")

    # Of the 3 x 3 places of the kernel, those outside of the image meet nothing.
    pairs = (3 * 8 - 2) ** 2
    image, kernel = jnp.ones((2, 4, 8, 8)), jnp.ones((6, 4, 3, 3))
    assert flops(f, image, kernel) == 2 * 2 * 4 * 6 * pairs


# A product of each of 4 matrices, as the compiler for TPU writes it, and one whose kernel has no dimension of its own.
CONVOLVED = """HloModule jit_f

ENTRY %main (x: bf16[4,8,16], y: bf16[4,32,16]) -> bf16[4,8,32] {
  %x = bf16[4,8,16]{2,1,0} parameter(0)
  %y = bf16[4,32,16]{2,1,0} parameter(1)
  ROOT %c = bf16[4,8,32]{2,1,0} convolution(%x, %y), WINDOW, dim_labels=0bf_0oi->0bf
}
"""


def test_a_batch_of_products_as_a_convolution():
    window = "window={size=4 stride=3 pad=0_0 lhs_dilate=4}"
    ops = Program(CONVOLVED.replace("WINDOW", window)).computations["main"]
    assert count_flops(ops["c"], ops) == 2 * 4 * 8 * 32 * 16


# A row of 320 meets the matrix of its group, and so does that of a gradient to rows.
RAGGED = """HloModule jit_f

ENTRY %main (s: s32[1], x: f32[320,128], w: f32[2,128,192]) -> f32[320,192] {
  %s = s32[1]{0} parameter(0)
  %x = f32[320,128]{1,0} parameter(1)
  %w = f32[2,128,192]{2,1,0} parameter(2)
  ROOT %r = f32[320,192]{1,0} custom-call(%s, /*index=1*/%x, %w), custom_call_target="tpu_custom_call", ATTRIBUTES
}
"""
TILING = 'frontend_attributes={ragged_dot_tiling="64,128,192"}, metadata={op_name="jit(f)/up/ragged_dot_general/none"}'


def test_a_kernel_for_rows_of_groups():
    (amount,) = [one for one in iterate_amounts(Program(RAGGED.replace("ATTRIBUTES", TILING))) if one.flops]
    assert amount.flops == 2 * 320 * 128 * 192
    assert amount.source == "jit(f)/up/ragged_dot_general"


# What a compiler for TPU makes of attention.
SAYS = 'backend_config={"custom_call_config":{"body":"TU","cost_estimate":{"flops":"4194304"}}}'


def test_a_kernel_counts_what_it_says():
    text = RAGGED.replace("%s = s32[1]{0} parameter(0)", "%s = bf16[1]{0} parameter(0)").replace("s: s32", "s: bf16")
    (amount,) = [one for one in iterate_amounts(Program(text.replace("ATTRIBUTES", SAYS))) if one.flops]
    assert (amount.flops, amount.dtype) == (4194304, "bfloat16")


ACCESSED = """HloModule jit_f

%read (p: f32[10,4], i: s32[]) -> f32[1,4] {
  %p = f32[10,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %b = f32[10,4]{1,0} bitcast(%p)
  %s = f32[1,4]{1,0} dynamic-slice(%b, %i, %i), dynamic_slice_sizes={1,4}
  ROOT %n = f32[1,4]{1,0} negate(%s)
}

%write (q: f32[10,4], u: f32[1,4], j: s32[]) -> f32[10,4] {
  %q = f32[10,4]{1,0} parameter(0)
  %u = f32[1,4]{1,0} parameter(1)
  %j = s32[] parameter(2)
  ROOT %d = f32[10,4]{1,0} dynamic-update-slice(%q, %u, %j, %j)
}

ENTRY %main (x: f32[10,4], k: s32[]) -> f32[10,4] {
  %x = f32[10,4]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %f = f32[1,4]{1,0} fusion(%x, %k), kind=kLoop, calls=%read, metadata={op_name="jit(f)/read"}
  ROOT %g = f32[10,4]{1,0} fusion(%x, %f, %k), kind=kLoop, calls=%write, metadata={op_name="jit(f)/write"}
}
"""


@pytest.mark.parametrize(("source", "nbytes"), [("jit(f)/read", 16 + 4 + 16), ("jit(f)/write", 16 + 4 + 16)])
def test_of_an_array_that_is_sliced_only_the_slice_counts(source, nbytes):
    found = {amount.source: amount.nbytes for amount in iterate_amounts(Program(ACCESSED))}
    assert found[source] == nbytes


# What libtpu makes of a product with one of the matrices that a loop over layers stacks.
NESTED = """HloModule jit_f

%slice (j: s32[], p: bf16[10,4,8]) -> bf16[4,8] {
  %p = bf16[10,4,8]{2,1,0} parameter(1)
  %j = s32[] parameter(0)
  %s = bf16[1,4,8]{2,1,0} dynamic-slice(%p, %j, %j, %j), dynamic_slice_sizes={1,4,8}
  ROOT %b = bf16[4,8]{1,0} bitcast(%s)
}

%double (q: bf16[2,4]) -> bf16[2,4] {
  %q = bf16[2,4]{1,0} parameter(0)
  ROOT %d = bf16[2,4]{1,0} add(%q, %q)
}

%product (w: bf16[10,4,8], i: s32[], r: bf16[2,4]) -> bf16[2,8] {
  %w = bf16[10,4,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %r = bf16[2,4]{1,0} parameter(2)
  %m = bf16[4,8]{1,0} fusion(%i, %w), kind=kLoop, calls=%slice
  %t = bf16[2,4]{1,0} fusion(%r), kind=kLoop, calls=%double
  ROOT %c = bf16[2,8]{1,0} convolution(%t, %m), dim_labels=bf_io->bf
}

ENTRY %main (x: bf16[10,4,8], k: s32[], y: bf16[2,4]) -> bf16[2,8] {
  %x = bf16[10,4,8]{2,1,0} parameter(0)
  %k = s32[]{:S(6)} parameter(1)
  %y = bf16[2,4]{1,0} parameter(2)
  ROOT %f = bf16[2,8]{1,0} fusion(%x, %k, %y), kind=kOutput, calls=%product, metadata={op_name="jit(f)/dot"}
}
"""


def test_a_product_reads_the_slice_that_a_fusion_inside_takes():
    (amount,) = [amount for amount in iterate_amounts(Program(NESTED)) if amount.nbytes]
    weights, rows, result, index = 2 * 4 * 8, 2 * 2 * 4, 2 * 2 * 8, 4
    assert amount.nbytes == weights + rows + result + index


# Two rows of a table are added to others, a row of an array near the units is replaced, and one of zeros is.
CHANGED = """HloModule jit_f

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%rows (p: f32[10,4], r: s32[2,1], u: f32[2,4]) -> f32[10,4] {
  %p = f32[10,4]{1,0} parameter(0)
  %r = s32[2,1]{1,0} parameter(1)
  %u = f32[2,4]{1,0} parameter(2)
  ROOT %s = f32[10,4]{1,0} scatter(%p, %r, %u), update_window_dims={1}, inserted_window_dims={0}, to_apply=%add
}

%near (q: f32[10,4], v: f32[1,4], i: s32[]) -> f32[10,4] {
  %q = f32[10,4]{1,0:S(1)} parameter(0)
  %v = f32[1,4]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %d = f32[10,4]{1,0:S(1)} dynamic-update-slice(%q, %v, %i, %i)
}

%zeros (w: f32[1,4], j: s32[]) -> f32[10,4] {
  %w = f32[1,4]{1,0} parameter(0)
  %j = s32[] parameter(1)
  %zero = f32[] constant(0)
  %z = f32[10,4]{1,0} broadcast(%zero), dimensions={}
  ROOT %e = f32[10,4]{1,0} dynamic-update-slice(%z, %w, %j, %j)
}

%nearer (y: f32[10,4]) -> (f32[40], f32[10,4]) {
  %y = f32[10,4]{1,0} parameter(0)
  %c = f32[10,4]{1,0} negate(%y)
  %b = f32[40]{0:S(1)} bitcast(%c)
  ROOT %t = (f32[40]{0:S(1)}, f32[10,4]{1,0:S(1)}) tuple(%b, %c)
}

ENTRY %main (x: f32[10,4], k: s32[], row: f32[1,4], l: s32[2,1], m: f32[2,4], n: f32[10,4]) -> f32[1,4] {
  %x = f32[10,4]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %row = f32[1,4]{1,0} parameter(2)
  %l = s32[2,1]{1,0} parameter(3)
  %m = f32[2,4]{1,0} parameter(4)
  %n = f32[10,4]{1,0:S(1)} parameter(5)
  %f = f32[10,4]{1,0} fusion(%x, %l, %m), kind=kLoop, calls=%rows, metadata={op_name="rows"}
  %g = f32[10,4]{1,0:S(1)} fusion(%n, %row, %k), kind=kLoop, calls=%near, metadata={op_name="near"}
  %h = f32[10,4]{1,0} fusion(%row, %k), kind=kLoop, calls=%zeros, metadata={op_name="zeros"}
  %t2 = (f32[40]{0:S(1)}, f32[10,4]{1,0:S(1)}) fusion(%x), kind=kLoop, calls=%nearer, metadata={op_name="nearer"}
  %o = f32[10,4]{1,0:S(1)} dynamic-update-slice(%g, %row, %k, %k), metadata={op_name="put"}
  ROOT %out = f32[1,4]{1,0:S(1)} dynamic-slice(%f, %k, %k), dynamic_slice_sizes={1,4}, metadata={op_name="fetched"}
}
"""


def test_of_what_is_changed_in_place_only_the_change_counts():
    nbytes = {amount.source: amount.nbytes for amount in iterate_amounts(Program(CHANGED)) if amount.source}
    row = 16
    assert nbytes == {
        # The places, the rows and what they change.
        "rows": 8 + 2 * row + 2 * row,
        # The place and the row; what they change is near the units.
        "near": 4 + row,
        # All zeros are written.
        "zeros": 4 + row + 10 * row,
        # What is read; all results are near the units, which their types tell, and not that of what makes them.
        "nearer": 10 * row,
        "put": row,
        "fetched": row,
    }


def test_a_product_of_halves_counts_as_one_of_halves():
    def f(x, y):
        return x @ y

    half = jnp.ones((32, 32), jnp.bfloat16)
    program = Program(jax.jit(f).lower(half, half).compile().as_text())
    assert {amount.dtype for amount in iterate_amounts(program) if amount.flops} == {"bfloat16"}


# As the compiler for TPU does: an array is brought to the units, where a loop adds to it, and back.
NEARER = """HloModule jit_f

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0:T(128)S(1)}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8]{0:T(128)S(1)} get-tuple-element(%s), index=1
  %y = f32[8]{0:T(128)S(1)} add(%x, %x)
  %z = f32[8]{0:T(128)} negate(%y)
  ROOT %t = (s32[], f32[8]{0:T(128)S(1)}) tuple(%i, %y)
}

%condition (u: (s32[], f32[8])) -> pred[] {
  %u = (s32[], f32[8]{0:T(128)S(1)}) parameter(0)
  %end = s32[] constant(5)
  %j = s32[] get-tuple-element(%u), index=0
  ROOT %lt = pred[] compare(%j, %end), direction=LT
}

ENTRY %main (v: f32[8]) -> (s32[], f32[8]) {
  %v = f32[8]{0:T(128)} parameter(0)
  %k = s32[]{:S(6)} constant(0)
  %begun = (f32[8]{0:T(128)S(1)}, f32[8]{0:T(128)}, u32[]{:S(2)}) copy-start(%v)
  %near = f32[8]{0:T(128)S(1)} copy-done(%begun)
  %in = (s32[]{:S(6)}, f32[8]{0:T(128)S(1)}) tuple(%k, %near)
  ROOT %out = (s32[], f32[8]{0:T(128)S(1)}) while(%in), condition=%condition, body=%body, metadata={op_name="up/while"}
}
"""


def test_what_is_near_the_units_is_not_read_from_memory():
    found = {}
    for amount in iterate_amounts(Program(NEARER)):
        found[amount.source] = found.get(amount.source, 0) + amount.nbytes
    # What a loop does without a name of its own belongs to the loop: five times the sum that is written to memory, and
    # the numbers that its condition compares.
    assert found == {"": 32, "up/while": 5 * 32 + 5 * (4 + 4 + 1)}


# A quarter of an array is fetched while another one is negated, and that is sent to a neighbour.
AHEAD = """HloModule jit_f, is_scheduled=true, num_partitions=2

ENTRY %main (v: f32[400], w: f32[100]) -> f32[100] {
  %v = f32[400]{0} parameter(0)
  %w = f32[100]{0} parameter(1)
  %begun = ((f32[400]{0}), f32[100]{0:S(1)}, s32[]{:S(2)}) slice-start(%v), slice={[0:100]}
  %y = f32[100]{0} negate(%w), metadata={op_name="negate"}
  %near = f32[100]{0:S(1)} slice-done(%begun)
  %z = f32[100]{0} add(%y, %near), metadata={op_name="add"}
  %sent = (f32[100]{0}, f32[100]{0}, u32[]{:S(2)}) collective-permute-start(%z), metadata={op_name="permute"}
  ROOT %received = f32[100]{0} collective-permute-done(%sent)
}
"""


def test_what_is_started_reads_what_it_takes_and_no_more():
    nbytes = {amount.source: amount.nbytes for amount in iterate_amounts(Program(AHEAD))}
    assert nbytes == {"": 400, "negate": 2 * 400, "add": 2 * 400, "permute": 2 * 400}


# A part of an array is fetched at a place that is computed, changed and put back, and that of all devices is summed.
STARTED = """HloModule jit_f, is_scheduled=true, num_partitions=2

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (v: f32[800], i: s32[]) -> f32[100] {
  %v = f32[800]{0} parameter(0)
  %i = s32[] parameter(1)
  %get = ((f32[800]{0}, s32[]), f32[100]{0:S(1)}, u32[]{:S(2)}) dynamic-slice-start(%v, %i), metadata={op_name="get"}
  %near = f32[100]{0:S(1)} dynamic-slice-done(%get)
  %y = f32[100]{0} negate(%near)
  %put = (TYPES, f32[800]{0}, u32[]{:S(2)}) dynamic-update-slice-start(%v, %y, %i), metadata={op_name="put"}
  %there = f32[800]{0} dynamic-update-slice-done(%put)
  %begun = f32[100]{0} all-reduce-start(%y), replica_groups={{0,1}}, to_apply=%add, metadata={op_name="sum"}
  ROOT %summed = f32[100]{0} all-reduce-done(%begun)
}
""".replace("TYPES", "(f32[800]{0}, f32[100]{0}, s32[])")


def test_what_is_started_reads_a_part_and_writes_what_it_returns():
    nbytes = {amount.source: amount.nbytes for amount in iterate_amounts(Program(STARTED))}
    assert (nbytes["get"], nbytes["put"], nbytes["sum"]) == (400, 2 * 400, 2 * 400)


# What the compiler for TPU makes of splash attention: a kernel forwards and two backwards, one of them recomputed.
SPLASH = """HloModule jit_f

ENTRY %main (b: s8[1,1], q: bf16[256,128]) -> bf16[256,128] {
  %b = s8[1,1]{1,0} parameter(0)
  %q = bf16[256,128]{1,0} parameter(1)
  %o = (f32[256,128]{1,0}, bf16[256,128]{1,0}) custom-call(%b, %q), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{}"
}}, metadata={op_name="jit(f)/jvp(layer)/jit(kernel[splash 100 350 9])/vmap(sparse)/splash_mha_fwd/pallas_call"}
  %r = (f32[256,128]{1,0}, bf16[256,128]{1,0}) custom-call(%q), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/transpose(jvp(layer))/rematted_computation/jit(kernel[splash 100 350 9])/splash_mha_fwd/pallas_call"}
  %kv = (bf16[256,128]{1,0}, bf16[256,128]{1,0}) custom-call(%q), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/transpose(jvp(layer))/jit(kernel[splash 100 350 9])/splash_mha_dkv/pallas_call"}
  ROOT %dq = bf16[256,128]{1,0} custom-call(%q), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/transpose(jvp(layer))/jit(kernel[splash 100 350 9])/splash_mha_dq/pallas_call"}
}
"""  # noqa: E501


def test_kernels_of_one_call_count_once():
    program = Program(SPLASH)
    amounts = [(find_place(one.source, has_gradient=True), one.flops) for one in iterate_amounts(program)]
    forward, again, backward = (Place("layer", phase) for phase in ("forward", "recomputed", "backward"))
    assert amounts == [(forward, 100.0), (again, 100.0), (backward, 350.0), (backward, 0.0)]
    # The table of blocks is no operand that is multiplied.
    assert {one.dtype for one in iterate_amounts(program) if one.flops} == {"bfloat16"}


# A carry that is offloaded, and comes back: a TPU starts such copies, and a GPU fusions with nothing else in them.
OFFLOADED = """HloModule jit_f

%wrapped (a: f32[8,64], u: f32[1,64]) -> f32[8,64] {
  %a = f32[8,64]{1,0:S(5)} parameter(0)
  %u = f32[1,64]{1,0} parameter(1)
  %zero = s32[] constant(0)
  ROOT %inner = f32[8,64]{1,0:S(5)} dynamic-update-slice(%a, %u, %zero, %zero)
}

ENTRY %main (x: f32[1,64], w: f32[64]) -> f32[1,64] {
  %x = f32[1,64]{1,0} parameter(0)
  %w = f32[64]{0:S(5)} parameter(1)
  %i = s32[] constant(0)
  %b = f32[8,64]{1,0:S(5)} custom-call(), custom_call_target="AllocateBuffer"
  %f = ((f32[8,64]{1,0:S(5)}, f32[1,64]{1,0}), f32[8,64]{1,0:S(5)}, u32[]) fusion-start(%b, %x), kind=kCustom, calls=%wrapped
  %fd = f32[8,64]{1,0:S(5)} fusion-done(%f)
  %s = ((f32[8,64]{1,0:S(5)}, s32[], s32[]), f32[1,64]{1,0}, u32[]) dynamic-slice-start(%fd, %i, %i), dynamic_slice_sizes={1,64}
  %sd = f32[1,64]{1,0} dynamic-slice-done(%s)
  %c = (f32[64]{0}, f32[64]{0:S(5)}, u32[]) copy-start(%w)
  %cd = f32[64]{0} copy-done(%c)
  ROOT %t = f32[1,64]{1,0} add(%sd, %sd)
}
"""  # noqa: E501


def test_copies_to_the_host_count_what_is_copied():
    program = Program(OFFLOADED)
    ops = program.computations["main"]
    copied = {name: count_amount(program, "main", op).copied for name, op in ops.items()}
    assert {name: nbytes for name, nbytes in copied.items() if nbytes} == {"f": 256, "s": 256, "c": 256}
    assert sum(one.copied for one in iterate_amounts(program)) == 3 * 256


def test_a_kernel_reads_what_it_says():
    """A kernel of blocks may read an operand several times, which its operands and results do not say."""
    says = '"cost_estimate":{"flops":"64","transcendentals":"0","bytes_accessed":"5000000"}}}'
    text = RAGGED.replace("ATTRIBUTES", 'backend_config={"custom_call_config":{"body":"TU",' + says)
    (amount,) = [one for one in iterate_amounts(Program(text)) if one.flops]
    assert (amount.flops, amount.nbytes) == (64, 5_000_000)
