"""Where public names are, by package and module; `python tools/places.py` writes this file."""

NAMES: dict[str, dict[str, str]] = {
    "axonym": {
        "axonym": (
            "debug errors mup nn optim parameters partitioning quant random state_dict testing "
            "tree typing"
        ),
        "axonym.array": "NamedArray is_named_array named",
        "axonym.axis": (
            "Axis AxisSelection AxisSelector AxisSpec axis_name axis_size concat_axes "
            "eliminate_axes intersect_axes make_axes replace_axis resolve_axis selector "
            "selects_axis union_axes unsize_axes without_axes"
        ),
        "axonym.costs.cost": "cost",
        "axonym.costs.plan": "plan",
        "axonym.create": (
            "arange eye fromfunction full full_like geomspace linspace logspace one_hot ones "
            "ones_like tri zeros zeros_like"
        ),
        "axonym.dynamic_slice": "dblock ds dslice",
        "axonym.layout.assignment": "Mappings ResourceMapping",
        "axonym.layout.context": "current_mapping",
        "axonym.nn.stack.one_f_one_b": "pipeline_value_and_grad",
        "axonym.ops": "image linalg",
        "axonym.ops.bits": "packbits unpackbits",
        "axonym.ops.contract": "dot einsum outer",
        "axonym.ops.cumulative": (
            "cumlogsumexp cummax cummin cumprod cumsum cumulative_prod cumulative_sum nancumprod "
            "nancumsum"
        ),
        "axonym.ops.diagonal": "diag diagonal fill_diagonal trace tril triu",
        "axonym.ops.elementwise": (
            "abs add angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh astype cbrt ceil "
            "clip conj copy copysign cos cosh deg2rad divide divmod exp exp2 expm1 fabs "
            "float_power floor floor_divide fmax fmin fmod frexp gcd heaviside hypot i0 imag "
            "isfinite isinf isnan lcm ldexp log log10 log1p log2 logaddexp logaddexp2 maximum "
            "minimum modf multiply nan_to_num negative nextafter positive power rad2deg real "
            "reciprocal remainder rint round rsqrt sign sin sinc sinh spacing sqrt square "
            "stop_gradient subtract tan tanh trunc"
        ),
        "axonym.ops.fft": "fft fftshift hfft ifft ifftshift ihfft irfft rfft",
        "axonym.ops.histogram": (
            "bincount corrcoef cov digitize histogram histogram2d histogram_bin_edges histogramdd"
        ),
        "axonym.ops.index": "index ravel_multi_index slice take take_along_axis unravel_index",
        "axonym.ops.join": "concatenate delete insert split stack unbind",
        "axonym.ops.linalg": "cross vdot vecdot",
        "axonym.ops.logical": (
            "allclose array_equal array_equiv bitwise_and bitwise_count bitwise_invert bitwise_or "
            "bitwise_xor equal greater greater_equal isclose iscomplex isneginf isposinf isreal "
            "left_shift less less_equal logical_and logical_not logical_or logical_xor not_equal "
            "right_shift signbit"
        ),
        "axonym.ops.nan_reduce": (
            "nanargmax nanargmin nanmax nanmean nanmin nanprod nanstd nansum nanvar"
        ),
        "axonym.ops.pad": "pad pad_left",
        "axonym.ops.poly": (
            "poly polyadd polyder polydiv polyfit polyint polymul polysub polyval roots trim_zeros "
            "vander"
        ),
        "axonym.ops.quantiles": "median nanmedian nanpercentile nanquantile percentile quantile",
        "axonym.ops.reduce": (
            "all any argmax argmin average count_nonzero logmeanexp logsumexp max mean min prod "
            "ptp std sum var"
        ),
        "axonym.ops.repeat": "repeat tile",
        "axonym.ops.roll": "flip roll rot90",
        "axonym.ops.segment": (
            "ragged_dot segment_max segment_mean segment_min segment_prod segment_sum"
        ),
        "axonym.ops.sets": (
            "intersect1d isin setdiff1d setxor1d union1d unique unique_all unique_counts "
            "unique_inverse unique_values"
        ),
        "axonym.ops.shape": (
            "broadcast_arrays broadcast_axis broadcast_to flatten flatten_axes rearrange rename "
            "squeeze tag unflatten_axis untag"
        ),
        "axonym.ops.signal": "convolve correlate diff ediff1d gradient interp trapezoid unwrap",
        "axonym.ops.softmax": "log_softmax softmax standardize",
        "axonym.ops.sorting": (
            "approx_max_k approx_min_k argpartition argsort lexsort partition searchsorted sort "
            "sort_complex top_k"
        ),
        "axonym.ops.special": (
            "betainc betaln digamma entr erf erfc erfinv gamma gammainc gammaincc gammaln i0e i1 "
            "i1e kl_div log_ndtr logit ndtr ndtri polygamma rel_entr xlog1py xlogy zeta"
        ),
        "axonym.ops.update": "put_along_axis updated_slice",
        "axonym.ops.where": "argwhere choose compress flatnonzero nonzero piecewise select where",
        "axonym.partitioning": "collectives",
        "axonym.partitioning.batches": "pad_batch",
        "axonym.partitioning.blocks": "axis_mapping pipelined",
        "axonym.partitioning.collectives": (
            "all_gather all_to_all axis_index fold_key pcast pmax pmean pmin ppermute psum "
            "psum_scatter ragged_all_to_all"
        ),
        "axonym.partitioning.fsdp": "fsdp",
        "axonym.partitioning.jit": "NamedJit named_jit",
        "axonym.partitioning.placement": "from_callback from_local local_slices",
        "axonym.partitioning.shard": (
            "auto_sharded pspec_for round_axis_for_partitioning set_mesh shard"
        ),
        "axonym.partitioning.shard_map": "ShardMap shard_map",
        "axonym.ref": "NamedRef freeze get new_ref swap",
        "axonym.report.check": "check",
        "axonym.samples": "bartlett blackman fftfreq hamming hanning kaiser rfftfreq",
        "axonym.transform.associative_scan": "associative_scan",
        "axonym.transform.checkpoint": (
            "ScanCheckpointPolicy ScanCheckpointSpec tree_checkpoint_name"
        ),
        "axonym.transform.grad": "grad hessian jacfwd jacrev value_and_grad",
        "axonym.transform.nmap": "nmap",
        "axonym.transform.scan": "fold map scan",
        "axonym.transform.vmap": "vmap",
        "axonym.typing": "Named",
        "axonym.xarray": "from_xarray to_xarray",
    },
    "axonym.nn": {
        "axonym.nn.activation": (
            "celu elu gelu glu hard_sigmoid hard_silu hard_tanh leaky_relu log1mexp log_sigmoid "
            "mish quick_gelu relu relu6 relu_squared selu sigmoid silu soft_sign softplus "
            "sparse_plus sparse_sigmoid squareplus"
        ),
        "axonym.nn.attention.attention": "dot_product_attention dot_product_attention_weights",
        "axonym.nn.attention.cache.cache": "KVCache",
        "axonym.nn.attention.latent": "LatentAttention",
        "axonym.nn.attention.layer": "Attention",
        "axonym.nn.attention.masks.arrays": (
            "causal_mask combine_masks_and combine_masks_or dropout_mask forgetful_causal_mask "
            "mask_to_bias prefix_lm_mask"
        ),
        "axonym.nn.attention.masks.mask": "AttentionMask causal prefix segments window",
        "axonym.nn.attention.positions.position": (
            "PositionEmbedding alibi_attention_bias sinusoidal_positions"
        ),
        "axonym.nn.attention.positions.rotary": "RotaryEmbedding RotaryTable rotary",
        "axonym.nn.attention.positions.scaling": (
            "DynamicScaling FrequencyScaling LengthScaling LinearScaling Llama3Scaling "
            "LongRopeScaling NtkScaling YarnScaling"
        ),
        "axonym.nn.attention.positions.zigzag": "zigzag",
        "axonym.nn.batch_norm": "BatchNorm BatchNormState",
        "axonym.nn.conv": "Conv ConvTranspose",
        "axonym.nn.dropout": "Dropout dropout",
        "axonym.nn.embedding": "Embedding",
        "axonym.nn.generation": "Generated generate",
        "axonym.nn.group_norm": "GroupNorm",
        "axonym.nn.initializer": "Initializer fan_in",
        "axonym.nn.linear": "Linear",
        "axonym.nn.lora": "LoraLinear add_lora lora_filter merge_lora",
        "axonym.nn.loss": (
            "binary_cross_entropy_loss chunked_cross_entropy_loss cross_entropy_loss "
            "cross_entropy_loss_and_log_normalizers reduce_loss"
        ),
        "axonym.nn.memory.delta": "GatedDeltaNet",
        "axonym.nn.memory.mamba": "Mamba2",
        "axonym.nn.mlp": "GatedMLP MLP",
        "axonym.nn.moe.linear": "MoELinear",
        "axonym.nn.moe.mixture": "MixtureOfExperts",
        "axonym.nn.moe.routing": "Routing update_choice_bias",
        "axonym.nn.norm": "LayerNorm RmsNorm",
        "axonym.nn.pool": "adaptive_max_pool adaptive_mean_pool max_pool mean_pool min_pool pool",
        "axonym.nn.recompute": "from_inputs keep_intermediates",
        "axonym.nn.recurrent": "GRUCell LSTMCell Recurrent RecurrentCell",
        "axonym.nn.sampling": "keep_min_p keep_top_k keep_top_p penalize_repetition sample",
        "axonym.nn.sequential": "Sequential",
        "axonym.nn.stack.block_seq": "BlockSeq",
        "axonym.nn.stack.interleaved": "Interleaved",
        "axonym.nn.stack.stacked": "BlockFoldable Stacked",
        "axonym.nn.state_space": "DiagonalSSM",
        "axonym.nn.transformer": "TransformerBlock",
    },
    "axonym.partitioning": {
        "axonym.costs.calibrate": "calibrate",
        "axonym.costs.report.cost": "Cost",
        "axonym.costs.report.lock": "assert_layout",
        "axonym.costs.search.layers": "EachLayer",
        "axonym.costs.search.result": "Plan",
        "axonym.costs.shared.targets": "Domain Efficiency Link TARGETS Target Torus",
        "axonym.layout.assignment": "first_fitting if_free",
        "axonym.partitioning.blocks": "limit_reshards",
        "axonym.partitioning.fsdp": "fsdp_mapping",
        "axonym.partitioning.hybrid": "make_hybrid_mesh",
        "axonym.partitioning.kernels": "kernel_cost",
        "axonym.partitioning.padding": "PaddedArray Padding is_padded pad_axes unpad_axes",
        "axonym.report.check": "check",
        "axonym.report.fit": "Fitted fit_mapping",
        "axonym.report.schedule": "schedule",
        "axonym.report.show": "show visualize",
    },
    "axonym.random": {
        "axonym.random.distributions": (
            "bernoulli beta binomial bits cauchy chisquare double_sided_maxwell exponential f "
            "gamma generalized_normal geometric gumbel laplace loggamma logistic lognormal maxwell "
            "normal pareto poisson rademacher randint rayleigh t triangular truncated_normal "
            "uniform wald weibull_min"
        ),
        "axonym.random.keys": "fold_in split",
        "axonym.random.vectors": (
            "ball categorical choice dirichlet multinomial multivariate_normal orthogonal "
            "permutation"
        ),
    },
}
# The modules of a package, for whoever writes the whole path.
BELOW: dict[str, str] = {
    "axonym": (
        "array axis base costs create current debug dynamic_slice engine errors faults layout "
        "models mup names nn ops optim parameters partitioning protocols quant random ref report "
        "samples shape state_dict testing transform tree typing xarray"
    ),
    "axonym.nn": (
        "activation attention batch_norm conv conv_blocks dropout embedding generation group_norm "
        "initializer inputs layer linear lora loss manual memory mixing mlp moe norm pool "
        "recompute recurrent rings roles sampling sequential settings stack state_space switch "
        "transformer weights windows"
    ),
    "axonym.partitioning": (
        "addresses arguments batches blocks buffers captured collectives counted flattened fsdp "
        "held hybrid jit kernels keys leaves manual numbers options padding permutations placement "
        "processes shard shard_map signatures stages trees"
    ),
    "axonym.random": "distributions draw keys vectors",
}
