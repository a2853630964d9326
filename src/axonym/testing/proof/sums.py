"""Internal. Operations that combine many elements: reductions, products, convolutions and windows."""

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction

from .elements import Equation, Rule, combine, split_words
from .facts import Known, Side
from .places import (
    INFINITY,
    Cause,
    Change,
    Digit,
    Part,
    Parts,
    Place,
    Reach,
    forget,
    make_exact,
    move,
    move_parts,
    rewrite,
    shift,
)
from .shapes import Dimensions, move_known, shape_of

_REDUCTIONS = split_words(
    "reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor argmax argmin"
)
# A zero changes nothing in these.
_SKIP_ZERO = ("reduce_sum", "reduce_or", "reduce_xor")


def _reduce(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    (known,) = inputs
    name, axes = equation.primitive.name, tuple(equation.params["axes"])
    return [reduce_known(known, name, axes, shape_of(equation.invars[0]), cause)]


def reduce_known(
    known: Known, name: str, axes: Sequence[int], shape: Sequence[int], cause: Cause
) -> Known:
    """Combine the elements along some dimensions, except elements that are known to change nothing."""
    guard = known.guard
    is_guarded = guard is not None and (
        (guard.kind == "zero" and name in _SKIP_ZERO)
        or (guard.kind == "hidden" and name == "reduce_max" and _sees_one(guard.side, axes, shape))
    )
    reach, may_hide = known.reach, known.may_hide
    if guard is not None and is_guarded:
        reach = confine(reach, guard.side, axes, shape, cause)
        may_hide = guard.may_hide if guard.kind == "hidden" else may_hide
    to = _drop(axes, len(shape))
    return Known(move(reach, to, cause), move_parts(known.varies, to), may_hide=may_hide)


def _drop(axes: Sequence[int], rank: int) -> Dimensions:
    """Return the new numbers of dimensions after some are removed."""
    kept = [i for i in range(rank) if i not in axes]
    to: dict[Place, Place | None] = dict.fromkeys(axes)
    return to | {old: new for new, old in enumerate(kept)}


def _sees_one(side: Side, axes: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether at least one of the combined elements is surely not hidden."""
    if len(axes) != 1:
        return False
    (axis,) = axes
    for pair in side.equal:
        if axis in pair and len(pair) == 2:
            (other,) = pair - {axis}
            # Each row has an element at the same coordinate.
            if isinstance(other, int) and shape[other] <= shape[axis]:
                return True
    return False


def confine(
    reach: Reach, side: Side, axes: Sequence[int], shape: Sequence[int], cause: Cause
) -> Reach:
    """Replace digits of removed dimensions by digits of others, if a mask bounds how far their coordinates differ."""

    def change(digit: Digit) -> Change:
        place = digit.place
        if isinstance(place, str) or place not in axes or not digit.is_plain(shape[place]):
            return (digit,), 0, 0
        for (other, one), ends in side.bounds.items():
            if one != place or isinstance(other, str) or other in axes:
                continue
            # The mask says that p - p_other is between the two ends, and both are in range.
            least = max(ends[0], 1 - shape[other])
            most = min(ends[1], shape[place] - 1)
            if ends == (-INFINITY, INFINITY):
                continue
            bounds = sorted((digit.weight * least, digit.weight * most))
            return (Digit(other, 1, shape[other], digit.weight),), bounds[0], bounds[1]
        return (digit,), 0, 0

    return rewrite(reach, change, cause)


def _multiply(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Multiply all pairs of elements, over the dimensions of the result and the summed dimensions, and then sum."""
    (left_over, right_over), (left_shared, right_shared) = equation.params["dimension_numbers"]
    left_shape, right_shape = map(shape_of, equation.invars)
    left_own = [i for i in range(len(left_shape)) if i not in (*left_over, *left_shared)]
    right_own = [i for i in range(len(right_shape)) if i not in (*right_over, *right_shared)]
    # The summed dimensions come last, behind those of the result: a product of all pairs, and then a sum.
    shape = [
        *(left_shape[i] for i in (*left_shared, *left_own)),
        *(right_shape[i] for i in right_own),
        *(left_shape[i] for i in left_over),
    ]
    first = len(left_shared) + len(left_own)
    places = list(range(len(shape)))
    summed = places[first + len(right_own) :]
    left: Dimensions = dict(
        zip((*left_shared, *left_own, *left_over), (*places[:first], *summed), strict=True)
    )
    right: Dimensions = dict(
        zip(
            (*right_shared, *right_own, *right_over),
            (*places[: len(left_shared)], *places[first:]),
            strict=True,
        )
    )
    moved = [move_known(inputs[0], left, cause), move_known(inputs[1], right, cause)]
    product = combine(moved, may_hide=any(one.may_hide for one in moved))
    # A product is zero where either factor is, so that one mask is enough for a weight and a value.
    guards = [one.guard for one in moved if one.guard is not None and one.guard.kind == "zero"]
    if guards:
        side = guards[0].side
        for guard in guards[1:]:
            side = side.meet(guard.side)
        product = dataclasses.replace(product, guard=guards[0]._replace(side=side))
    return [reduce_known(product, "reduce_sum", summed, shape, cause)]


def _convolve(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    image, kernel = inputs
    params = equation.params
    numbers = params["dimension_numbers"]
    image_shape, kernel_shape = map(shape_of, equation.invars)
    new_shape = shape_of(equation.outvars[0])
    (rows, channels, *image_places) = numbers.lhs_spec
    (features, summed, *kernel_places) = numbers.rhs_spec
    (out_rows, out_features, *out_places) = numbers.out_spec
    # The dimensions of the result follow those of the image, so that coordinates move within one numbering.
    first = max(len(new_shape), len(image_shape))
    to: dict[Place, Place | None] = {channels: None}
    to[rows] = out_rows if params["batch_group_count"] == 1 else None
    to |= {i: first + i for i in image_places}
    reach = move(image.reach, to, cause)
    for i, place in enumerate(image_places):
        low = params["padding"][i][0]
        reach = _read_window(
            reach,
            first + place,
            image_shape[place],
            kernel_shape[kernel_places[i]],
            cause,
            stride=params["window_strides"][i],
            dilation=params["rhs_dilation"][i],
            gaps=params["lhs_dilation"][i],
            low=low,
            new_size=new_shape[out_places[i]],
        )
        reach = move(reach, {first + place: out_places[i]}, cause)
    own: dict[Place, Place | None] = dict.fromkeys((summed, *kernel_places))
    own[features] = out_features
    of_kernel = move(kernel.reach, own, cause)
    varies = frozenset(map(Part, (out_features, *out_places)))
    if params["batch_group_count"] != 1:
        varies |= {Part(out_rows)}
    dropped: dict[Place, Place | None] = dict.fromkeys(image_places)
    parts = move_parts(image.varies, to | dropped)
    known = combine([Known(reach, parts), Known(of_kernel)], may_hide=_hide(inputs))
    tokens = keep_tokens(kernel.varies)
    return [dataclasses.replace(known, varies=known.varies | varies | tokens)]


def _hide(inputs: Sequence[Known]) -> bool:
    return any(one.may_hide for one in inputs)


def _read_window(
    reach: Reach,
    place: Place,
    size: int,
    width: int,
    cause: Cause,
    *,
    stride: int,
    dilation: int,
    gaps: int,
    low: int,
    new_size: int,
) -> Reach:
    """Let each coordinate read a window along a dimension.

    Args:
        reach: what is read.
        place: the dimension.
        size: its size.
        width: how many elements the window has.
        cause: the equation.
        stride: the distance between windows.
        dilation: the distance between elements of a window.
        gaps: the distance between elements of the operand, with zeros between them.
        low: how much padding there is before the first element.
        new_size: how many windows there are.
    """
    if (width, stride, gaps, low, new_size) == (1, 1, 1, 0, size):
        return reach
    # NumPy's integers, which programs may have, know no fractions.
    step = Fraction(1, int(gaps))
    start, end = -int(low) * step, int((width - 1) * dilation - low) * step
    return shift(
        reach,
        place,
        size,
        cause,
        stride=make_exact(int(stride) * step),
        reach_by=(make_exact(start), make_exact(end)),
        new_size=new_size,
    )


def _slide(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Combine the elements of windows; an operand of another shape is the initial value of the reduction."""
    params = equation.params
    shape, new_shape = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    ones = (1,) * len(shape)
    gaps = params.get("base_dilation") or ones
    dilation = params.get("window_dilation") or ones
    strides, widths = params["window_strides"], params["window_dimensions"]
    found: list[Known] = []
    for variable, known in zip(equation.invars, inputs, strict=True):
        reach, varies = known.reach, known.varies
        if shape_of(variable) == shape:
            for i, width in enumerate(widths):
                old = reach
                reach = _read_window(
                    reach,
                    i,
                    shape[i],
                    width,
                    cause,
                    stride=strides[i],
                    dilation=dilation[i],
                    gaps=gaps[i],
                    low=params["padding"][i][0],
                    new_size=new_shape[i],
                )
                # At the edges a window has fewer elements, so results differ by their place.
                if old is not reach:
                    varies |= {Part(i)}
        found.append(Known(reach, varies))
    return [combine(found, may_hide=_hide(inputs))] * len(equation.outvars)


def _scatter_windows(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Add to the elements that windows select, or read them; any coordinate of a window may be selected."""
    params = equation.params
    sizes = zip(
        params["window_dimensions"], params["window_strides"], params["padding"], strict=True
    )
    moved = [i for i, own in enumerate(sizes) if (own[0], own[1], tuple(own[2])) != (1, 1, (0, 0))]
    to: Dimensions = dict.fromkeys(moved)
    reach = move(combine(inputs, may_hide=False).reach, to, cause)
    varies = combine(inputs, may_hide=False).varies | frozenset(map(Part, moved))
    return [Known(reach, varies, may_hide=_hide(inputs))]


def _accumulate(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    (known,), axis = inputs, equation.params["axis"]
    size = shape_of(equation.invars[0])[axis]
    ends = (0, size - 1) if equation.params.get("reverse") else (1 - size, 0)
    reach = shift(known.reach, axis, size, cause, reach_by=ends, new_size=size)
    return [Known(reach, known.varies | {Part(axis)}, may_hide=known.may_hide)]


def forget_dimensions(inputs: Sequence[Known], dimensions: Sequence[Place], cause: Cause) -> Known:
    """Let each element depend on all coordinates of some dimensions, and keep the dimensions."""

    def change(digit: Digit) -> Change:
        return forget(digit) if digit.place in dimensions else ((digit,), 0, 0)

    known = combine(inputs, may_hide=_hide(inputs))
    reach = rewrite(known.reach, change, cause)
    return dataclasses.replace(
        known, reach=reach, varies=known.varies | frozenset(map(Part, dimensions))
    )


def keep_tokens(parts: Parts) -> Parts:
    """Keep the parts whose places are loops or devices."""
    return frozenset(part for part in parts if isinstance(part.place, str))


def _fold(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Reduce several arrays at once, by a program that combines two elements."""
    axes, shape = equation.params["dimensions"], shape_of(equation.invars[0])
    known = combine(inputs, may_hide=_hide(inputs))
    return [reduce_known(known, "reduce", axes, shape, cause)] * len(equation.outvars)


def _sort(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    params = equation.params
    rank = len(shape_of(equation.invars[0]))
    axis = params.get("dimension", params.get("axis", params.get("reduction_dimension", rank - 1)))
    return [forget_dimensions(inputs, [axis % rank], cause)] * len(equation.outvars)


# Operations on matrices or vectors, which are the last dimensions: how many dimensions they have.
_MATRICES = {
    "cholesky": 2,
    "eig": 2,
    "eigh": 2,
    "geqrf": 2,
    "hessenberg": 2,
    "householder_product": 2,
    "lu": 2,
    "lu_pivots_to_permutation": 1,
    "qr": 2,
    "schur": 2,
    "svd": 2,
    "triangular_solve": 2,
    "tridiagonal": 2,
    "tridiagonal_solve": 1,
}


def _compute_matrices(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    lead = len(shape_of(equation.invars[0])) - _MATRICES[equation.primitive.name]
    return treat_last(equation, inputs, lead, cause)


def _transform(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    lead = len(shape_of(equation.invars[0])) - len(equation.params["fft_lengths"])
    return treat_last(equation, inputs, lead, cause)


def _cast_bits(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    # Between dtypes of different sizes, the last dimension comes or goes.
    lead = min(len(shape_of(equation.invars[0])), len(shape_of(equation.outvars[0])))
    return treat_last(equation, inputs, lead, cause)


def treat_last(equation: Equation, inputs: Sequence[Known], lead: int, cause: Cause) -> list[Known]:
    """Let results depend on everything along all dimensions but the leading ones."""
    rank = max(len(shape_of(variable)) for variable in (*equation.invars, *equation.outvars))
    known = forget_dimensions(inputs, range(lead, rank), cause)
    found: list[Known] = []
    for variable in equation.outvars:
        rank = len(shape_of(variable))
        own = frozenset(
            part for part in known.varies if isinstance(part.place, str) or part.place < rank
        )
        found.append(dataclasses.replace(known, varies=own))
    return found


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_MATRICES, _compute_matrices),
    **dict.fromkeys(("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"), _accumulate),
    **dict.fromkeys(
        ("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum"), _slide
    ),
    **dict.fromkeys(
        ("select_and_gather_add", "select_and_scatter", "select_and_scatter_add"), _scatter_windows
    ),
    **dict.fromkeys(("approx_top_k", "sort", "top_k"), _sort),
    "bitcast_convert_type": _cast_bits,
    "conv_general_dilated": _convolve,
    "dot_general": _multiply,
    "fft": _transform,
    "reduce": _fold,
}
