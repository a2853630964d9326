"""A trainer that may be stopped: microbatches, a running mean of the model, batches from callbacks, checkpoints."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import jax.random as jrandom
import jmp
import numpy as np
import optax
from haliax import Axis, NamedArray
from haliax.jax_utils import is_jax_array_like
from haliax.partitioning import ResourceAxis, ResourceMapping, named_jit, pspec_for_axis
from haliax.state_dict import from_state_dict, load_state_dict, save_state_dict, to_numpy_state_dict
from haliax.types import IntScalar
from jax.sharding import Mesh, NamedSharding

M = TypeVar("M")
Embed, Mlp, Classes = hax.make_axes(embed=8, mlp=16, classes=4)


class TrainerState(eqx.Module, Generic[M]):
    step: IntScalar = eqx.field(converter=jnp.asarray)
    model: M
    average: M
    opt_state: Any
    training_key: jax.Array
    optimizer: optax.GradientTransformation = eqx.field(static=True)

    @classmethod
    def init(cls, optimizer: optax.GradientTransformation, model: M, *, key) -> "TrainerState[M]":
        opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        return cls(0, model, model, opt_state, key, optimizer)

    def take_step(self, grads: M, *, key) -> "TrainerState[M]":
        updates, opt_state = self.optimizer.update(grads, self.opt_state, self.model)
        model = eqx.apply_updates(self.model, updates)
        average = jax.tree.map(
            lambda old, new: 0.9 * old + 0.1 * new if eqx.is_array(new) else new, self.average, model
        )
        return dataclasses.replace(
            self, step=self.step + 1, model=model, average=average, opt_state=opt_state, training_key=key
        )


@dataclass
class TrainerConfig:
    mp: jmp.Policy = field(default_factory=lambda: jmp.get_policy("p=f32,c=f32"))
    model_axis_size: int = 2
    batch_axis: str = "batch"
    fsdp_axis: str | list[str] = "embed"
    tensor_parallel_axes: list[str] = field(default_factory=lambda: ["mlp"])
    train_batch_size: int = 16
    per_device_parallelism: int = 2

    TrainBatch = property(lambda self: Axis(self.batch_axis, self.train_batch_size))

    @cached_property
    def device_mesh(self) -> Mesh:
        devices = np.array(jax.devices()).reshape(-1, self.model_axis_size)
        return Mesh(devices, (ResourceAxis.DATA, ResourceAxis.MODEL))

    @cached_property
    def compute_axis_mapping(self) -> ResourceMapping:
        mapping: dict[str, Any] = dict.fromkeys(self.tensor_parallel_axes, ResourceAxis.MODEL)
        return {**mapping, self.batch_axis: (ResourceAxis.DATA,)}

    @cached_property
    def parameter_axis_mapping(self) -> ResourceMapping:
        return {**self.compute_axis_mapping, **dict.fromkeys(hax.util.ensure_tuple(self.fsdp_axis), ResourceAxis.DATA)}

    @property
    def microbatch_size(self) -> int:
        return jax.device_count() // self.model_axis_size * self.per_device_parallelism


class Trainer:
    def __init__(self, config: TrainerConfig, optimizer: optax.GradientTransformation, loss_fn: Callable):
        self.config, self.optimizer, self.raw_loss = config, optimizer, loss_fn

    def loss_fn(self, model: Any, *batch: NamedArray, key=None):
        with hax.axis_mapping(self.config.compute_axis_mapping):
            return self.raw_loss(self.config.mp.cast_to_compute(model), *batch, key=key).scalar()

    def initial_state(self, model_init: Callable, *, key, path: str | None = None) -> TrainerState:
        def init(key):
            return TrainerState.init(self.optimizer, self.config.mp.cast_to_param(model_init()), key=key)

        if path is None:
            return named_jit(init, self.config.parameter_axis_mapping)(key)
        with hax.axis_mapping(self.config.parameter_axis_mapping):
            return restore(eqx.filter_eval_shape(init, key), path)

    def train_step(self, state: TrainerState, *batch: NamedArray) -> tuple[float, TrainerState]:
        loss, state = self._train_step(state, batch)
        return loss.item(), state

    @cached_property
    def _train_step(self):
        mapping = self.config.parameter_axis_mapping
        return named_jit(self._step, axis_resources=mapping, out_axis_resources=mapping, donate_args=(True, False))

    def _step(self, state: TrainerState, batch: tuple[NamedArray, ...]):
        key, new_key = jrandom.split(state.training_key)
        loss, grads = self.gradients(state.model, *batch, key=key)
        return loss, hax.shard(state.take_step(grads, key=new_key), self.config.parameter_axis_mapping)

    def gradients(self, model: Any, *batch: NamedArray, key):
        config, Batch = self.config, self.config.TrainBatch
        grad_fn = eqx.filter_value_and_grad(self.loss_fn)
        Micro = Batch.resize(config.microbatch_size)
        Steps = Axis("accum_step", Batch.size // Micro.size)

        def parted(x: NamedArray) -> NamedArray:
            return hax.shard(x.unflatten_axis(Batch, (Steps, Micro)), config.compute_axis_mapping)

        def add(total, batch, key):
            total = eqx.apply_updates(total, grad_fn(model, *batch, key=key))
            return hax.shard_with_axis_mapping(total, config.parameter_axis_mapping)

        shapes = eqx.filter_eval_shape(grad_fn, model, *batch, key=key)
        total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype) if is_jax_array_like(x) else x, shapes)
        micro = jax.tree.map(parted, batch, is_leaf=hax.is_named_array)
        total = hax.fold(add, Steps)(total, micro, jrandom.split(key, Steps.size))
        return jax.tree.map(lambda x: x / Steps.size, total)

    @cached_property
    def eval_step(self):
        def evaluate(model, *batch):
            return self.loss_fn(eqx.nn.inference_mode(model), *batch)

        return named_jit(evaluate, axis_resources=self.config.compute_axis_mapping)


def save(state: TrainerState, path: str) -> None:
    leaves = jax.tree.leaves(state.opt_state)
    tree = {"model": state.model, "average": state.average, "opt_state": leaves}
    save_state_dict({**to_numpy_state_dict(tree), "step": state.step, "key": state.training_key}, path)


def restore(shapes: TrainerState, path: str) -> TrainerState:
    state_dict = load_state_dict(path)
    leaves, structure = jax.tree.flatten(shapes.opt_state)
    opt_state = jax.tree.unflatten(structure, from_state_dict(leaves, state_dict, prefix="opt_state"))
    model, average = (from_state_dict(getattr(shapes, part), state_dict, prefix=part) for part in ("model", "average"))
    step, key = jnp.asarray(state_dict["step"]), jnp.asarray(state_dict["key"])
    state = TrainerState(step, model, average, opt_state, key, shapes.optimizer)
    return hax.shard(state)


class Classifier(eqx.Module):
    norm: hnn.LayerNorm
    mlp: hnn.MLP
    dropout: hnn.Dropout
    scale: jax.Array = hax.field(axis_names=("embed",))

    @staticmethod
    def init(*, key) -> "Classifier":
        mlp = hnn.MLP.init(Embed, Classes, Mlp, 1, hnn.gelu, key=key)
        return Classifier(hnn.LayerNorm.init(Embed), mlp, hnn.Dropout(0.1), jnp.ones(Embed.size))

    def __call__(self, x: NamedArray, *, key=None) -> NamedArray:
        x = self.dropout(self.norm(x), key=key)
        return self.mlp(x * hax.named(self.scale, Embed))


def loss_fn(model: Classifier, x: NamedArray, y: NamedArray, *, key=None) -> NamedArray:
    return hnn.cross_entropy_loss(model(x, key=key), Classes, hnn.one_hot(y, Classes))


def batches(config: TrainerConfig, seed: int = 0) -> Iterator[tuple[NamedArray, ...]]:
    """Draw on the host, and let each device fetch what it is to have."""
    rng, Batch = np.random.default_rng(seed), config.TrainBatch

    def spread(values: np.ndarray, axes: tuple[Axis, ...]) -> NamedArray:
        sharding = NamedSharding(config.device_mesh, pspec_for_axis(axes, config.compute_axis_mapping))
        return NamedArray(jax.make_array_from_callback(values.shape, sharding, lambda index: values[index]), axes)

    while True:
        x = rng.normal(size=(Batch.size, Embed.size)).astype(np.float32)
        yield spread(x, (Batch, Embed)), spread(x.argmax(-1).astype(np.int32) % Classes.size, (Batch,))
