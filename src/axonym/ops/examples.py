"""Internal. One example for each elementwise operation; `help` shows it below the sentence of the operation.

`elementwise`, `logical` and `special` add them to the docstrings of their functions. The site reads sources only, so
tools/griffe_alias_methods.py adds them again. In the docstrings themselves, the 123 examples would double the length of
the modules.
"""

from collections.abc import Mapping

# A list stands for an array over the axis "i".
_TABLE = """
abs([-1, 2]) = [1, 2]
add([1, 2], 10) = [11, 12]
angle([1j, -1.0], deg=True) = [90.0, 180.0]
arccos([0.0, 1.0]) = [1.570..., 0.0]
arccosh([1.0, 2.0]) = [0.0, 1.316...]
arcsin([0.0, 1.0]) = [0.0, 1.570...]
arcsinh([0.0, 1.0]) = [0.0, 0.881...]
arctan([0.0, 1.0]) = [0.0, 0.785...]
arctan2([0.0, 1.0], [1.0, 0.0]) = [0.0, 1.570...]
arctanh([0.0, 0.5]) = [0.0, 0.549...]
astype([1.5, 2.0], int) = [1, 2]
cbrt([8.0]) = [2.0]
ceil([1.2, -1.2]) = [2.0, -1.0]
clip([1, 5, 9], 2, 8) = [2, 5, 8]
conj([1 + 2j]) = [(1-2j)]
copy([1, 2]) = [1, 2]
copysign([1.0, 2.0], -1.0) = [-1.0, -2.0]
cos([0.0, 1.0]) = [1.0, 0.540...]
cosh([0.0, 1.0]) = [1.0, 1.543...]
deg2rad([0.0, 180.0]) = [0.0, 3.141...]
divide([1, 2], 2) = [0.5, 1.0]
exp([0.0, 1.0]) = [1.0, 2.718...]
exp2([3.0]) = [8.0]
expm1([0.0, 1.0]) = [0.0, 1.718...]
fabs([-1, 2]) = [1.0, 2.0]
float_power([2, 3], 2) = [4.0, 9.0]
floor([1.8, -1.2]) = [1.0, -2.0]
floor_divide([7, -7], 2) = [3, -4]
fmax([1.0, jnp.nan], 0.0) = [1.0, 0.0]
fmin([1.0, jnp.nan], 0.0) = [0.0, 0.0]
fmod([7, -7], 3) = [1, -1]
gcd([12, 18], 8) = [4, 2]
heaviside([-1.0, 0.0, 2.0], 0.5) = [0.0, 0.5, 1.0]
hypot([3.0], 4.0) = [5.0]
i0([1.0]) = [1.266...]
imag([1 + 2j]) = [2.0]
isfinite([1.0, jnp.inf]) = [True, False]
isinf([1.0, jnp.inf]) = [False, True]
isnan([1.0, jnp.nan]) = [False, True]
lcm([4, 6], 10) = [20, 30]
ldexp([0.5, 1.0], 3) = [4.0, 8.0]
log([1.0, 2.0]) = [0.0, 0.693...]
log1p([0.0, 1.0]) = [0.0, 0.693...]
log2([8.0]) = [3.0]
log10([1.0, 100.0]) = [0.0, 2.0]
logaddexp([0.0], 0.0) = [0.693...]
logaddexp2([3.0], 3.0) = [4.0]
maximum([1, 5], 3) = [3, 5]
minimum([1, 5], 3) = [1, 3]
multiply([1, 2], 10) = [10, 20]
negative([1, -2]) = [-1, 2]
nextafter([1.0, 3.0], 2.0) = [1.000..., 2.999...]
positive([1, -2]) = [1, -2]
power([2, 3], 2) = [4, 9]
rad2deg([0.0, jnp.pi]) = [0.0, 180.0]
real([1 + 2j]) = [1.0]
reciprocal([4.0]) = [0.25]
remainder([7, -7], 3) = [1, 2]
rint([0.5, 1.5, 1.7]) = [0.0, 2.0, 2.0]
round([1.5, 2.7]) = [2.0, 3.0]
rsqrt([4.0]) = [0.5]
sign([-3, 0, 5]) = [-1, 0, 1]
sin([0.0, 1.0]) = [0.0, 0.841...]
sinc([0.0, 0.5]) = [1.0, 0.636...]
sinh([0.0, 1.0]) = [0.0, 1.175...]
spacing([1.0]) = [1.192...e-07]
sqrt([4.0, 9.0]) = [2.0, 3.0]
square([2, 3]) = [4, 9]
stop_gradient([1, 2]) = [1, 2]
subtract([10, 20], 1) = [9, 19]
tan([0.0, 1.0]) = [0.0, 1.557...]
tanh([0.0, 1.0]) = [0.0, 0.761...]
trunc([1.8, -1.8]) = [1.0, -1.0]
allclose([1.0, 2.0], [1.0, 2.000001]) = True
array_equal([1, 2], [1, 2]) = True
array_equiv([1, 1], 1) = True
bitwise_and([12, 5], 4) = [4, 4]
bitwise_count([7, 8]) = [3, 1]
bitwise_invert([0, 7]) = [-1, -8]
bitwise_or([12, 5], 3) = [15, 7]
bitwise_xor([12, 5], 4) = [8, 1]
equal([1, 2], 2) = [False, True]
greater([1, 2], 1) = [False, True]
greater_equal([1, 2], 2) = [False, True]
isclose([1.0, 2.0], [1.0, 2.1]) = [True, False]
iscomplex([1j, 1]) = [True, False]
isneginf([-jnp.inf, jnp.inf]) = [True, False]
isposinf([-jnp.inf, jnp.inf]) = [False, True]
isreal([1j, 1]) = [False, True]
left_shift([1, 2], 3) = [8, 16]
less([1, 2], 2) = [True, False]
less_equal([1, 2], 1) = [True, False]
logical_and([True, False], True) = [True, False]
logical_not([True, False]) = [False, True]
logical_or([True, False], False) = [True, False]
logical_xor([True, False], True) = [False, True]
not_equal([1, 2], 2) = [True, False]
right_shift([8, 16], 3) = [1, 2]
signbit([-0.0, 1.0]) = [True, False]
betainc([2.0], 3.0, 0.4) = [0.524...]
betaln([2.0], 3.0) = [-2.484...]
digamma([1.0]) = [-0.577...]
entr([0.5]) = [0.346...]
erf([0.0, 1.0]) = [0.0, 0.842...]
erfc([0.0, 1.0]) = [1.0, 0.157...]
erfinv([0.0, 0.5]) = [0.0, 0.476...]
gamma([0.5]) = [1.772...]
gammainc([1.0], 1.0) = [0.632...]
gammaincc([1.0], 1.0) = [0.367...]
gammaln([0.5]) = [0.572...]
i0e([1.0]) = [0.465...]
i1([1.0]) = [0.565...]
i1e([1.0]) = [0.207...]
kl_div([1.0], 2.0) = [0.306...]
log_ndtr([0.0]) = [-0.693...]
logit([0.5, 0.9]) = [0.0, 2.197...]
ndtr([0.0, 1.0]) = [0.5, 0.841...]
ndtri([0.5, 0.9]) = [0.0, 1.281...]
polygamma([1, 2], 1.0) = [1.644..., -2.404...]
rel_entr([0.0, 1.0], 2.0) = [0.0, -0.693...]
xlog1py([0.0, 2.0], 1.0) = [0.0, 1.386...]
xlogy([0.0, 2.0], 3.0) = [0.0, 2.197...]
zeta([2.0], 1.0) = [1.644...]
"""


def _write(call: str, result: str) -> str:
    named = call.replace("[", "axn.named([").replace("]", '], "i")')
    return f"\n\n    Examples:\n        >>> axn.{named}.tolist()\n        {result}\n    "


EXAMPLES = {
    call.partition("(")[0]: _write(call, result)
    for call, _, result in (line.partition(" = ") for line in _TABLE.strip().splitlines())
}
"""The section of a docstring with the example of each function."""


def add_examples(functions: Mapping[str, object]) -> None:
    """Append examples to the docstrings of the functions whose names are in the table."""
    for name, function in functions.items():
        if name in EXAMPLES and function.__doc__:  # without one in `python -OO`
            function.__doc__ += EXAMPLES[name]
