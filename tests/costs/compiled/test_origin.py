"""Where operands come from."""

from axonym.costs.compiled.origin import find_later_type, find_origin
from axonym.costs.compiled.program import Program
from tests.costs.compiled.test_program import TEXT

# Halves that the compiler for CPU widens: one it gathers, one it sums, and one that the function converts.
WIDENED = """HloModule jit_f, num_partitions=2

%widen (p: bf16[1,8]) -> f32[8] {
  %p = bf16[1,8]{1,0} parameter(0)
  %c = f32[1,8]{1,0} convert(%p)
  ROOT %b = f32[8]{0} bitcast(%c), metadata={op_name="jit(f)/up/mul"}
}

%narrow (q: f32[8]) -> bf16[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %d = bf16[8]{0} convert(%q)
}

ENTRY %main (x: bf16[1,8], y: f32[8], z: bf16[8]) -> bf16[8] {
  %x = bf16[1,8]{1,0} parameter(0), metadata={op_name="model_weight"}
  %y = f32[8]{0} parameter(1)
  %z = bf16[8]{0} parameter(2)
  %f = f32[8]{0} fusion(%x), kind=kLoop, calls=%widen
  %own = f32[8]{0} convert(%z), metadata={op_name="jit(f)/convert_element_type"}
  %gather = f32[16]{0} all-gather(%f), replica_groups={{0,1}}, dimensions={0}
  %both = (f32[8]{0}, f32[8]{0}) all-reduce(%y, %own), replica_groups={{0,1}}
  %first = f32[8]{0} get-tuple-element(%both), index=0
  %second = f32[8]{0} get-tuple-element(%both), index=1
  %n = bf16[8]{0} fusion(%first), kind=kLoop, calls=%narrow
  %m = f32[8]{0} multiply(%second, %second)
  ROOT %r = bf16[8]{0} add(%n, %n)
}
"""


def test_an_argument_is_found_through_a_fusion():
    origin = find_origin(Program(WIDENED), "main", "f")
    assert (origin.op.opcode, origin.op.source) == ("parameter", "model_weight")
    assert origin.source == "jit(f)/up/mul"
    assert origin.narrow is not None
    assert origin.narrow.dtype == "bf16"


def test_an_argument_is_found_through_a_loop():
    origin = find_origin(Program(TEXT), "main", "z")
    assert (origin.computation, origin.op.opcode) == ("body", "all-gather")
    inside = find_origin(Program(TEXT), "body", "x")
    assert (inside.computation, inside.op.name) == ("main", "v")


def test_what_the_function_converts_is_what_it_sends():
    program = Program(WIDENED)
    assert find_origin(program, "main", "own").narrow is None
    assert find_later_type(program, "main", "both", 0) == "bf16"
    assert find_later_type(program, "main", "both", 1) is None
