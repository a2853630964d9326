# %% [markdown]
# # Converting an Equinox model
#
# A plain Equinox network is trained, converted to names without a change of its values,
# and sharded over eight devices. The [guide](../guides/from-equinox.md) has each step with
# its reasons.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import axonym as axn
import axonym.nn as nn
import axonym.state_dict as sd

# %% [markdown]
# ## As it was
#
# A network that learns the curve of a sum of sines. Its batch is up to `jax.vmap`, and a
# comment says what the dimensions are.


# %%
class Network(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear

    def __init__(self, features, mlp, *, key):
        k_first, k_last = jax.random.split(key)
        self.first = eqx.nn.Linear(features, mlp, key=k_first)
        self.norm = eqx.nn.LayerNorm(mlp)
        self.last = eqx.nn.Linear(mlp, 1, key=k_last)

    def __call__(self, x):  # (features,) -> (1,)
        return self.last(jnp.tanh(self.norm(self.first(x))))


def features_of(x):  # (batch,) -> (batch, 16)
    return jnp.stack([f(k * x) for k in range(1, 9) for f in (jnp.sin, jnp.cos)], -1)


x = jnp.linspace(-3, 3, 256)
y = jnp.sin(3 * x) + 0.5 * jnp.sin(11 * x)
optimizer = optax.adam(3e-3)


@eqx.filter_jit
def step(model, state):
    def loss(model):
        return jnp.mean((jax.vmap(model)(features_of(x))[:, 0] - y) ** 2)

    value, gradients = eqx.filter_value_and_grad(loss)(model)
    updates, state = optimizer.update(gradients, state)
    return eqx.apply_updates(model, updates), state, value


old = Network(16, 64, key=jax.random.key(0))
state = optimizer.init(eqx.filter(old, eqx.is_array))
for _ in range(200):
    old, state, value = step(old, state)
print(f"loss {value:.4f}")

# %% [markdown]
# ## The same, by name
#
# Sizes become axes, `Linear(...)` becomes `Linear.init(...)`, and the rest stays.

# %%
Batch, Features, Mlp, Out = axn.make_axes(batch=256, features=16, mlp=64, out=1)


class Named(eqx.Module):
    first: nn.Linear
    norm: nn.LayerNorm
    last: nn.Linear

    @staticmethod
    def init(*, key):
        k_first, k_last = jax.random.split(key)
        first = nn.Linear.init(Features, Mlp, key=k_first)
        last = nn.Linear.init(Mlp, Out, key=k_last)
        return Named(first, nn.LayerNorm.init(Mlp), last)

    def __call__(self, x):
        return self.last(axn.tanh(self.norm(self.first(x))))


# %% [markdown]
# Equinox stores weights as torch does, (out, in). The state dict carries them over, and
# an abstract model says where each belongs:

# %%
abstract = jax.eval_shape(lambda key: Named.init(key=key), jax.random.key(0))
new = sd.from_torch_compatible_state_dict(abstract, sd.to_state_dict(old))

named_x = axn.named(features_of(x), (Batch, Features))
before, after = jax.vmap(old)(features_of(x))[:, 0], new(named_x)["out", 0]
print(f"largest difference: {float(jnp.abs(before - after.array).max()):.1e}")

# %% [markdown]
# ## On eight devices
#
# Names were the work; the layout is one dict. A misfit would be an error before anything
# is compiled.

# %%
mesh = jax.make_mesh((4, 2), ("data", "model"))
with axn.set_mesh(mesh):
    sharded = axn.shard(new, {"features": "data", "mlp": "model"})
    run = axn.named_jit(lambda model, x: model(x), {"batch": "data", "mlp": "model"})
    spread = run(sharded, named_x)
np.testing.assert_allclose(spread["out", 0].array, before, atol=1e-4)
axn.partitioning.show({"model": sharded, "result": spread}).picture()

# %% [markdown]
# Three computations of one curve: by the old model, by the new one, and by the new one on
# eight devices.

# %%
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.plot(x, y, color="gray", linestyle=":", label="target")
axes.plot(x, before, linewidth=7, alpha=0.4, label="Equinox")
axes.plot(x, after.array, linewidth=3, alpha=0.7, label="Axonym")
axes.plot(x, spread["out", 0].array, linewidth=1, label="Axonym, eight devices")
axes.legend(framealpha=0, ncols=4, fontsize=8, loc="lower center")
axes.set_ylim(-2.1, 1.8)
