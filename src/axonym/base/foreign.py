"""Internal. Names of other libraries, and the name to write here instead of each.

These names are not defined, which `hasattr` shows; reading one raises an AttributeError that says what to write.
"""

import sys
from typing import NoReturn

from ..errors import message, suggestion
from .places import NAMES

_REORDER = 'x.rearrange(("embed", ...)) stores the axes in another order'
_REGROUP = "x.flatten_axes and x.flatten merge axes, x.unflatten_axis splits one"
_WIDEN = 'operands are lined up by name, without axes of size 1; x.broadcast_axis(Axis("batch", 8)) repeats'
_CONVERT = "x.astype(jnp.float32) converts"
_MOVE = "axn.shard(x, mapping) or jax.device_put(x, device) moves it"
_SPLIT = 'x.split("embed", [Axis("first", 4), Axis("second", 12)]) gives parts, x.unbind("embed") its places'
_GRADIENT = "gradients are those of functions: axn.grad(loss)(x)"
_UPDATE = 'arrays do not change; x.at["batch", 0].set(1.0) returns a new one, as set, add, multiply, min and max do'
_PICK = 'x["embed", indices] reads at indices; x.take_along_axis and x.at[...] match them by name'
_PRODUCT = 'x.dot(y, axis="embed") sums over axes that it names, as axn.einsum does'
_NAMES = "x.names are the names, x.shape the sizes by name, x.axes both"
_JOIN = (
    'axn.concatenate("embed", [x, y]) joins along an axis, axn.stack("new", [x, y]) along a new one'
)
_MAP = "axn.vmap and axn.nmap apply a function along axes"
_TRANSFORM = "axn.fft, and each like it, takes several axes"
_OF_NUMPY = "numbers and dtypes are those of jax.numpy: jnp.pi, jnp.float32"
_KEY = "keys are those of JAX: jax.random.key(0)"
_NORMAL = "axn.random.normal(key, axes), with a key of jax.random.key(0)"
_UNIFORM = "axn.random.uniform(key, axes), with a key of jax.random.key(0)"
_FILES = "axn.state_dict has save_state_dict and load_state_dict; a whole run is for Orbax"
_VALUES = "x.array is the array without its names, np.asarray(x) that of NumPy"

# Functions of elements, and along axes, that are methods elsewhere.
_ELEMENTS = "abs exp log log1p expm1 sqrt rsqrt square sin cos tan tanh floor ceil sign erf isnan isinf isfinite"
_OF_AXES = "softmax log_softmax logsumexp diff"
_OF_LAYERS = "relu gelu silu sigmoid softplus leaky_relu"
_OF_TWO = "add subtract multiply divide power maximum minimum"
_OF_JAX = {
    **dict.fromkeys(("cond", "switch", "while_loop", "fori_loop", "lax"), "jax.lax"),
    **dict.fromkeys(("Mesh", "make_mesh"), "jax.make_mesh"),
    **dict.fromkeys(("checkpoint", "remat"), "jax.checkpoint"),
    "device_put": "jax.device_put",
}
_OPERATORS = {"sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power"}


def _each(names: str, hint: str) -> dict[str, str]:
    """Give each of several names a hint with the name in it."""
    return {name: hint.format(name) for name in names.split()}


def _each_of(names: str, hint: str) -> dict[str, str]:
    """Give several names the same hint."""
    return dict.fromkeys(names.split(), hint)


ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys(
        (
            "T",
            "mT",
            "t",
            "transpose",
            "swapaxes",
            "swap_axes",
            "permute",
            "movedim",
            "moveaxis",
            "align_to",
        ),
        _REORDER,
    ),
    **dict.fromkeys(("reshape", "ravel", "view", "resize", "unflatten"), _REGROUP),
    **dict.fromkeys(("unsqueeze", "expand_dims", "expand", "expand_as", "broadcast"), _WIDEN),
    **dict.fromkeys(
        ("float", "double", "half", "bfloat16", "int", "long", "type", "type_as", "bool"), _CONVERT
    ),
    **dict.fromkeys(("cuda", "device", "place", "to_device"), _MOVE),
    "to": f"{_CONVERT}; {_MOVE}",
    **dict.fromkeys(("chunk", "tensor_split", "narrow", "unstack"), _SPLIT),
    **dict.fromkeys(("backward", "grad", "requires_grad", "requires_grad_"), _GRADIENT),
    "detach": "axn.stop_gradient(x)",
    **dict.fromkeys(
        ("fill_", "zero_", "copy_", "add_", "sub_", "mul_", "div_", "clamp_", "set", "fill"),
        _UPDATE,
    ),
    **dict.fromkeys(
        ("gather", "index_select", "scatter", "scatter_add", "index_add", "isel", "sel", "loc"),
        _PICK,
    ),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "einsum", "tensordot", "inner"), _PRODUCT),
    **dict.fromkeys(("dims", "sizes", "dim", "rank"), _NAMES),
    **dict.fromkeys(("numpy", "cpu", "values", "data"), _VALUES),
    "clone": "x.copy()",
    "contiguous": "arrays of JAX always are; leave it out",
    "numel": "x.size",
    "masked_fill": "axn.where(mask, value, x)",
    "clamp": "x.clip(low, high)",
    "repeat_interleave": 'x.repeat("embed", 2), or axn.tile',
    "apply": _MAP,
    "norm": 'axn.linalg.norm(x, "embed")',
    **_each(_ELEMENTS, "axn.{}(x)"),
    **_each(_OF_AXES, 'axn.{}(x, "embed")'),
    **_each(_OF_LAYERS, "axn.nn.{}(x)"),
    **_each(_OF_TWO, "axn.{}(x, y), or its operator"),
    **{old: f"axn.{new}(x, y), or its operator" for old, new in _OPERATORS.items()},
}
FUNCTIONS: dict[str, str] = {
    **_each_of(
        "transpose permute swapaxes moveaxis permute_dims rollaxis matrix_transpose", _REORDER
    ),
    **_each_of("reshape ravel resize", _REGROUP),
    **_each_of("expand_dims unsqueeze newaxis atleast_1d atleast_2d atleast_3d meshgrid", _WIDEN),
    **_each_of("matmul tensordot inner bmm mm multi_dot", _PRODUCT),
    **_each_of("cat hstack vstack dstack column_stack block append", _JOIN),
    **_each_of("array_split hsplit vsplit dsplit unstack chunk", _SPLIT),
    **_each_of("put place putmask copyto", _UPDATE),
    **_each_of("apply_along_axis apply_over_axes", _MAP),
    **_each_of("fft2 fftn rfft2 rfftn ifft2 ifftn irfft2 irfftn", _TRANSFORM),
    **_each_of("fliplr flipud", 'axn.flip(x, "embed")'),
    **_each_of("empty empty_like", "axn.zeros and axn.zeros_like"),
    "ix_": _PICK,
    "amax": "axn.max",
    "amin": "axn.min",
    "around": "axn.round",
    "diagflat": "axn.diag",
    "extract": "axn.compress",
    "fix": "axn.trunc",
    "identity": "axn.eye",
    **dict.fromkeys(
        ("asarray", "tensor", "from_numpy", "as_tensor"), 'axn.named(array, ("batch", "embed"))'
    ),
    "jit": "axn.named_jit lays arrays out by a mapping; jax.jit works too",
    "clamp": "axn.clip",
    "power_": "axn.power",
    **dict.fromkeys(("Array", "Tensor", "NamedTensor"), "axn.NamedArray"),
    **dict.fromkeys(
        ("pi", "inf", "nan", "float32", "bfloat16", "float16", "int32", "bool_"), _OF_NUMPY
    ),
    **dict.fromkeys(("key", "PRNGKey", "manual_seed"), _KEY),
    "randn": _NORMAL,
    "rand": _UNIFORM,
    "norm": 'axn.linalg.norm(x, "embed")',
    "no_grad": f"{_GRADIENT}; axn.stop_gradient(x) is a constant to them",
    **dict.fromkeys(("PartitionSpec", "NamedSharding"), "axn.pspec_for(x, mapping) makes a jax.P"),
    **dict.fromkeys(("save", "load"), _FILES),
    **{name: f"it is JAX's: {place}" for name, place in _OF_JAX.items()},
}
SAMPLERS: dict[str, str] = {
    **dict.fromkeys(("key", "PRNGKey", "seed", "manual_seed", "default_rng"), _KEY),
    **dict.fromkeys(("randn", "standard_normal", "gauss"), _NORMAL),
    **dict.fromkeys(("rand", "random"), _UNIFORM),
    **dict.fromkeys(("shuffle", "randperm"), 'axn.random.permutation(key, x, "batch")'),
}
_CONV = 'nn.Conv.init(("height", "width"), In, Out, kernel_size, key=key), over any number of named axes'
_ATTEND = "nn.Attention.init(Embed, Heads, HeadDim, key=key)"
_INSTANCE = "nn.GroupNorm.init(axis, groups)"
_MODULE = "modules are those of Equinox: class Model(eqx.Module), with its arrays as fields"
_SEVERAL = "a tuple or a dict of layers; nn.Sequential calls them in turn, nn.Stacked loops over equal ones"
_PLACES = "functions are in axonym and axonym.nn, initializers in nn.initializer"
LAYERS: dict[str, str] = {
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Conv1D", "Conv2D", "Conv3D"), _CONV),
    **dict.fromkeys(
        ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"), "nn.ConvTranspose.init"
    ),
    **dict.fromkeys(
        ("Dense", "DenseGeneral", "LinearGeneral", "Einsum"), "nn.Linear.init(In, Out, key=key)"
    ),
    **dict.fromkeys(
        ("MultiheadAttention", "MultiHeadAttention", "MultiHeadDotProductAttention"), _ATTEND
    ),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "nn.BatchNorm.init(axis, over)"),
    **dict.fromkeys(("InstanceNorm", "InstanceNorm2d"), _INSTANCE),
    **dict.fromkeys(("RMSNorm", "RMSLayerNorm"), "nn.RmsNorm.init(axis)"),
    **dict.fromkeys(("Embed", "EmbeddingBag"), "nn.Embedding.init(Vocab, Embed, key=key)"),
    **dict.fromkeys(
        ("LSTM", "OptimizedLSTMCell"), 'nn.Recurrent(nn.LSTMCell.init(In, Hidden, key=key), "pos")'
    ),
    **dict.fromkeys(("GRU", "RNN"), 'nn.Recurrent(nn.GRUCell.init(In, Hidden, key=key), "pos")'),
    **dict.fromkeys(("MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxPool"), "nn.max_pool, a function"),
    **dict.fromkeys(
        ("AvgPool1d", "AvgPool2d", "AvgPool3d", "AvgPool", "avg_pool"), "nn.mean_pool, a function"
    ),
    **dict.fromkeys(
        ("AdaptiveAvgPool2d", "AdaptiveMaxPool2d"), "nn.adaptive_mean_pool or nn.adaptive_max_pool"
    ),
    **dict.fromkeys(
        ("CrossEntropyLoss", "cross_entropy", "NLLLoss"), "nn.cross_entropy_loss, a function"
    ),
    **dict.fromkeys(
        ("BCELoss", "BCEWithLogitsLoss", "bce_loss"), "nn.binary_cross_entropy_loss, a function"
    ),
    **dict.fromkeys(
        ("MSELoss", "mse_loss", "L1Loss"), "((x - y) ** 2).mean() and axn.abs(x - y).mean()"
    ),
    **dict.fromkeys(("Module", "Parameter"), _MODULE),
    **dict.fromkeys(("ModuleList", "ModuleDict", "List"), _SEVERAL),
    **dict.fromkeys(("functional", "F", "init"), _PLACES),
    "ReLU": "nn.relu, a function",
    "GELU": "nn.gelu, a function",
    **dict.fromkeys(("SiLU", "Swish", "swish"), "nn.silu, a function"),
    "Tanh": "axn.tanh, a function",
    "Sigmoid": "nn.sigmoid, a function",
    "Softmax": 'axn.softmax(x, "embed"), a function',
    "Identity": "lambda x: x",
    "Flatten": "x.flatten_axes",
}
# What other libraries call the names of a package or module, and where else a name may be.
_ELSEWHERE: dict[str, tuple[dict[str, str], str]] = {
    "axonym": (FUNCTIONS, "axonym.nn"),
    "axonym.nn": (LAYERS, "axonym"),
    "axonym.random": (SAMPLERS, "axonym"),
}


class Lacking:
    """An attribute that a named array lacks: reading it raises AttributeError with a hint.

    `__getattr__` could do the same, but before Python 3.12 it slows down every access to an attribute.
    """

    def __init__(self, name: str, hint: str) -> None:
        self.name = name
        self.hint = hint

    def __get__(self, x: object, cls: type) -> NoReturn:
        raise AttributeError(
            message(self.name, f"a {cls.__name__} has no such attribute", hint=self.hint)
        )


def missing(package: str, name: str) -> AttributeError:
    """Build the error for a name that a package or module lacks: its name here, another place, or a near one."""
    if name.startswith("_"):  # asked for by tools
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    # A name of another library goes before a near one of ours.
    table, other = _ELSEWHERE.get(package, ({}, "axonym"))
    hint = table.get(name)
    if hint is None and name in _list_names(other):
        hint = f"it is in another module: {other.replace('axonym', 'axn')}.{name}"
    problem = f"there is no {name!r}"
    return AttributeError(
        message(package, problem, hint=hint or suggestion(name, _list_names(package)))
    )


def _list_names(package: str) -> list[str]:
    """Return the public names of a package, or of a module that is loaded."""
    if package not in NAMES:
        return list(sys.modules[package].__all__)
    return " ".join(NAMES[package].values()).split()
