"""What each of 98 mistakes that a new user made is answered with, and a count of the verdicts.

Good: the answer names what was asked, what is there and what would work, or there is no mistake any more. Usable: one
of these is missing. Silent and misleading answers have a reason, which the docs tell, too.
"""

import ast
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Row(NamedTuple):
    """A mistake, what its answer is, the tests that hold it, and why it is no better."""

    mistake: str
    verdict: str
    tests: str
    why: str = ""


ROWS = [
    # Names and sizes.
    Row("a misspelt axis in a reduction", "good", "misspelt_axis_in_a_reduction"),
    Row("an axis of another size in a reduction", "good", "an_axis_of_another_size_in_a_reduction"),
    Row("a sum of disjoint axes", "good", "sum_of_disjoint_axes"),
    Row("one name, two sizes", "good", "two_batches_in_a_sum"),
    Row("an axis of size 1 that should stretch", "good", "an_axis_of_size_1_that_should_stretch"),
    Row("a misspelt axis of an operand of dot", "good", "dot_with_a_misspelt_operand"),
    Row("an input without the axis of a layer", "good", "an_input_that_lacks_the_axis_of_a_layer"),
    Row("an input of another size", "good", "an_input_of_another_size_than_the_layer"),
    Row("a plain array into a layer", "good", "a_plain_array_for_a_layer"),
    Row("a named array plus a plain one", "good", "a_plain_vector_in_a_sum"),
    Row("a function of JAX", "usable", "a_function_of_jax_numpy a_function_of_jax_nn", "JAX's text, told in the FAQ"),
    Row("x @ w", "good", "matmul"),
    Row("an axis by position", "good", "a_negative_position_as_axis a_position_as_axis"),
    Row("an index by position", "good", "a_position_as_index positions_as_indices a_position_in_at"),
    Row("reshape, T", "good", "reshape transpose"),
    Row("attributes of torch", "good", "permute unsqueeze to chunk view"),
    Row("B, T, C = x.shape", "good", "unpacked_shape"),
    Row("x.shape[0]", "good", "a_position_in_the_shape"),
    Row("softmax without an axis", "good", "softmax_without_an_axis log_softmax_without_an_axis"),
    Row(
        "concatenate and stack without the axis first",
        "good",
        "concatenate_in_the_order_of_numpy stack_without_an_axis",
    ),
    Row("a class token that lacks the batch", "good", "a_class_token_that_lacks_the_batch"),
    Row(
        "sizes without names",
        "good",
        "an_array_that_is_no_axis sizes_without_names a_layer_of_sizes a_range_of_a_number",
    ),
    Row("an axis twice", "good", "an_axis_twice"),
    Row("names that do not fit the array", "good", "too_few_names a_name_of_another_size"),
    Row("names in one string", "good", "names_in_one_string"),
    Row("rename onto another axis", "good", "rename_onto_another_axis"),
    Row("rename or index of a missing axis", "good", "rename_of_a_missing_axis index_along_a_missing_axis"),
    # Indexing, expressions.
    Row("an index out of range", "good", "an_index_out_of_range"),
    Row("a slice out of range", "silent", "a_slice_out_of_range", "Python and NumPy cut slices"),
    Row("a traced index out of range", "silent", "a_traced_index_out_of_range", "JAX cannot raise in a program"),
    Row(
        "a token out of range",
        "silent",
        "a_token_out_of_range_where_that_is_checked",
        "NaN, as JAX cannot raise in a program; an error inside of axn.debug.checks()",
    ),
    Row("a mask as index", "good", "a_mask_as_index"),
    Row(
        "patterns of rearrange",
        "good",
        "rearrange_of_a_missing_axis rearrange_that_makes_an_axis_of_nothing rearrange_that_cannot_split"
        " rearrange_with_unbalanced_brackets rearrange_that_drops_an_axis",
    ),
    Row("words of rearrange in another order", "good", "rearrange_in_an_order_that_is_not_the_stored_one"),
    Row("einsum as in NumPy", "good", "einsum_without_an_arrow einsum_of_two_sizes einsum_in_the_words_of_numpy"),
    Row("einsum with what is not there", "good", "einsum_of_an_unknown_output einsum_of_too_few_operands"),
    # Layers.
    Row(
        "a layer without init",
        "good",
        "linear_without_init linear_without_init_but_with_a_key layer_norm_without_init",
    ),
    Row("a stack that is called", "good", "a_stack_that_is_called"),
    Row("arguments of Stacked.init", "good", "a_stack_of_a_number_of_layers a_stack_with_its_arguments_swapped"),
    Row("too few keys", "good", "too_few_keys"),
    Row("a stack without a key", "good", "a_stack_without_a_key"),
    Row("a layer of a stack that changes axes", "good", "a_layer_of_a_stack_that_changes_axes"),
    Row("keys that were not renamed", "good", "keys_that_were_not_renamed keys_that_were_not_renamed_as_said"),
    Row("values that were not renamed", "good", "values_that_were_not_renamed"),
    Row("a mask over another name", "good", "a_mask_over_another_name"),
    Row("an array and a mask", "good", "an_array_and_a_mask_combine"),
    Row("dropout without a key", "good", "dropout_without_a_key"),
    Row("a loss of other targets", "good", "a_loss_over_another_axis float_targets targets_without_names"),
    Row("targets that were not shifted", "good", "targets_that_were_not_shifted"),
    Row("batch norm without its state", "good", "batch_norm_without_its_state"),
    Row("a sum with a pair", "good", "a_residual_of_experts"),
    Row("a cache that is full", "good", "a_cache_that_is_full"),
    Row(
        "a cache that is full in a program",
        "silent",
        "a_cache_that_is_full_in_a_program a_cache_that_is_full_in_a_program_where_that_is_checked",
        "JAX cannot raise in a program; an error inside of axn.debug.checks()",
    ),
    Row("axes that cannot be", "good", "an_axis_with_its_size_first an_axis_of_negative_size an_axis_of_a_fraction"),
    Row(
        "another array in place of a weight",
        "usable",
        "a_plain_array_put_in_place_of_a_weight other_axes_put_in_place_of_a_weight",
        "the operation inside of the layer answers, and not the name of the weight",
    ),
    # Transformations.
    Row("jax.grad of a named loss", "good", "a_gradient_of_a_named_loss", "JAX's text, with what to write"),
    Row("a gradient or scalar of an array", "good", "a_gradient_of_an_array a_scalar_of_an_array"),
    Row("jax.vmap over a named axis", "good", "vmap_of_jax_over_a_named_axis"),
    Row("lax.scan over a named axis", "usable", "scan_of_jax_over_a_named_axis", "on Explicit mesh axes, JAX's text"),
    Row(
        "jax.vmap over what only passes through",
        "silent",
        "vmap_of_jax_over_another_axis_that_only_passes_through",
        "no code of ours runs",
    ),
    Row("a misspelt axis of scan or vmap", "good", "a_misspelt_axis_of_scan a_misspelt_axis_of_vmap"),
    Row("a carry that changes", "good", "a_carry_that_changes_axes a_carry_that_changes_its_dtype"),
    Row("a carry that starts as a number", "good", "a_carry_that_starts_as_a_number"),
    Row("a step that returns no pair", "good", "a_step_that_returns_no_pair"),
    Row(
        "axes in different orders, to JAX",
        "usable",
        "branches_in_different_orders a_carry_of_jax_that_changes_the_order_of_axes a_cotangent_in_another_order"
        " a_loop_of_jax_that_changes_the_order_of_axes a_tangent_in_another_order",
        "JAX's text, with the names and what stores them so",
    ),
    Row("jax.jit with an axis", "usable", "jit_of_jax_with_an_axis", "JAX's text"),
    Row("jax.tree.map over names", "misleading", "tree_map_of_jax_over_names", "JAX's text, told in the FAQ"),
    # Layouts.
    Row(
        "a misspelt key of a mapping",
        "good",
        "a_misspelt_key_of_named_jit a_misspelt_key_of_fsdp a_misspelt_key_of_shard a_misspelt_key_of_shard_map",
    ),
    Row(
        "a misspelt key of axis_mapping and pspec_for",
        "silent",
        "a_misspelt_key_of_axis_mapping a_misspelt_key_of_pspec_for",
        "a block of axis_mapping may hold a part of a model; pspec_for raises",
    ),
    Row("a misspelt mesh axis", "good", "a_misspelt_mesh_axis"),
    Row("two names on one mesh axis", "good", "two_names_on_one_mesh_axis two_names_on_one_mesh_axis_in_named_jit"),
    Row("a size that does not divide", "good", "a_size_that_does_not_divide"),
    Row("no mesh", "good", "no_mesh"),
    Row("a mapping that is none", "good", "a_mapping_that_is_a_list a_mapping_that_is_a_spec a_mapping_to_a_position"),
    Row("a mapping with axes as keys", "good", "a_mapping_of_axes_is_one_of_their_names"),
    Row("a mapping the wrong way round", "good", "a_mapping_the_wrong_way_round"),
    Row("axis_mapping without with", "good", "axis_mapping_without_with"),
    Row("a state of another mesh", "good", "a_state_of_another_mesh"),
    Row("two meshes in one operation", "good", "two_meshes_in_one_operation"),
    Row("an array of a mesh with other names", "good", "an_array_of_a_mesh_with_other_names"),
    Row("shard_map without a psum", "good", "shard_map_without_a_psum"),
    Row("psum of a block or of an unknown name", "good", "psum_of_a_block psum_over_an_unknown_name"),
    Row("lax.psum over a name", "good", "psum_of_jax_over_a_name"),
    Row("the global size inside of shard_map", "good", "the_global_size_inside_of_shard_map"),
    Row("a spec that is too long", "good", "a_spec_that_is_too_long", "JAX's text, which says it all"),
    Row("arguments of jax.jit", "good", "in_shardings donate_argnums static_argnums"),
    Row("a number that changes at each step", "good", "a_number_that_changes_at_each_step"),
    Row("a donated state", "good", "a_model_that_is_donated_twice a_donated_state"),
    # Files and dtypes.
    Row("keys that do not fit", "good", "keys_that_do_not_fit"),
    Row("keys with a prefix", "good", "keys_with_a_prefix"),
    Row("a load of nothing", "good", "a_load_of_nothing"),
    Row(
        "a file of torch",
        "good",
        "a_file_of_torch a_square_weight_that_was_saved_for_torch_is_exchanged_by_the_names_in_the_file"
        " a_square_weight_of_torch",
        "arrays without a file have no names: all of them square, they load as they are",
    ),
    Row(
        "a file of other names",
        "silent",
        "a_file_of_other_names",
        "an error for state dicts; files of Orbax and Equinox keep no names, see Checkpoints",
    ),
    Row("Orbax: another size", "usable", "", "Orbax's text"),
    Row("Orbax: no layout on Explicit mesh axes", "misleading", "", "Orbax's text, in a warning of Checkpoints"),
    Row("shard of an abstract tree", "good", "shard_of_an_abstract_tree_says_where_its_arrays_will_be"),
    Row("no file, or another format", "good", "a_file_of_another_format no_file"),
    Row("a model cast outside of the gradient", "silent", "a_model_cast_outside_of_the_gradient", "it may be meant"),
]


def decorators() -> dict[str, str]:
    """Return the decorator of each test of a mistake by its name; an empty text for none."""
    found: dict[str, str] = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                calls = [one.func for one in node.decorator_list if isinstance(one, ast.Call)]
                names = [func.id for func in calls if isinstance(func, ast.Name)]
                found[node.name.removeprefix("test_")] = "".join(names)
    return found


def test_the_count_of_verdicts() -> None:
    verdicts = [row.verdict for row in ROWS]
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    assert counts == {"good": 82, "usable": 6, "silent": 8, "misleading": 2}
    assert len(ROWS) == 98


def test_each_verdict_is_that_of_its_tests() -> None:
    known = decorators()
    for row in ROWS:
        kinds = [known[name] for name in row.tests.split()]
        if row.verdict == "good":
            # A whole text of ours, a mistake that is none any more, or a text of others that needs no better one.
            assert kinds[0] in ("says", "warns", "") or row.why, row
        else:
            assert row.why, row


def test_orbax_is_answered_by_its_page() -> None:
    page = (ROOT / "docs/guides/checkpoints.md").read_text()
    assert '!!! warning "Give Orbax the layout, not only the shapes"' in page
    assert "knows no names" in page
