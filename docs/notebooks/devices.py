# %% [markdown]
# # Many devices
#
# One model on eight devices, which a CPU simulates. Layouts change; the model, its values
# and its errors do not. To simulate devices in a notebook of your own, begin it with
# `jax.config.update("jax_num_cpu_devices", 8)`.

# %%
import jax
import matplotlib.pyplot as plt

import axonym as axn
import axonym.nn as nn

print(f"{jax.device_count()} devices")
mesh = jax.make_mesh((4, 2), ("data", "model"))
Batch, Embed, Mlp = axn.make_axes(batch=64, embed=128, mlp=512)

# %% [markdown]
# ## A mapping is a layout
#
# A mapping says which axes of the mesh split which axes of arrays. `show` lists what it
# means for a model, which may be abstract, as `eval_shape` makes it.


# %%
def init(key):
    return nn.MLP.init(Embed, Embed, Mlp, depth=1, activation=nn.gelu, key=key)


abstract = jax.eval_shape(init, jax.random.key(0))
layout = axn.partitioning.show(abstract, {"embed": "data", "mlp": "model"}, mesh)
layout

# %% [markdown]
# As a picture. A colour is a device, and what all devices hold is grey:

# %%
layout.picture()

# %% [markdown]
# ## Check before you pay
#
# `axn.check` traces a function under a mapping, on a mesh of any size, without devices.
# Here is a pod that nobody has to rent, and a typo that nobody has to find there.


# %%
def loss_fn(model, x):
    return ((model(x) - x) ** 2).mean().scalar()


x = axn.random.normal(jax.random.key(1), (Batch, Embed))
pod = {"data": 64, "model": 8}
axn.check(loss_fn, {"batch": "data", "mpl": "model"}, pod, abstract, x, quiet=True)

# %% [markdown]
# ## Three strategies
#
# A strategy is two mappings: how parameters are stored, and how the computation is split.

# %%
STRATEGIES = {
    "data parallel": ({}, {"batch": ("data", "model")}),
    "fully sharded": ({"embed": ("data", "model")}, {"batch": ("data", "model")}),
    "tensor parallel": ({"mlp": "model"}, {"batch": "data", "mlp": "model"}),
}


def step(model, x):
    loss, gradients = jax.value_and_grad(loss_fn)(model, x)
    return jax.tree.map(lambda p, g: p - 2.0 * g, model, gradients), loss


losses = {}
for name, (stored, computed) in STRATEGIES.items():
    with axn.set_mesh(mesh):
        model = axn.named_jit(init, stored)(jax.random.key(0))
        run = axn.fsdp(step, stored, computed, donate_args=(True,))
        losses[name] = []
        for _ in range(60):
            model, loss = run(model, x)
            losses[name].append(float(loss))
    weight = model.layers[0].weight
    held = weight.array.addressable_shards[0].data.nbytes / weight.array.nbytes
    print(f"{name}: each device holds {held:.3f} of the first weight")

# %% [markdown]
# The initial values and the batch are the same under all three, so the losses are too:

# %%
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for width, (name, values) in zip((8, 4, 1.5), losses.items(), strict=True):
    axes.plot(values, linewidth=width, alpha=0.8, label=name)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend(framealpha=0)

# %% [markdown]
# And this is where the parts of the last model are:

# %%
axn.partitioning.show(model).picture()
