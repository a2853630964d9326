# %% [markdown]
# # A model: two spirals
#
# A network that separates two spirals: layers, a loss, a training step and its layout.

# %%
import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import axonym as axn
import axonym.nn as nn

Point, Plane, Mlp, Classes = axn.make_axes(point=400, plane=2, mlp=64, classes=2)

# %% [markdown]
# ## Data

# %%
draw = np.random.default_rng(0)
labels = axn.named(draw.integers(2, size=400), Point)
angle = axn.named(draw.uniform(0.5, 9, size=400), Point)
turned = angle + labels * np.pi
spiral = axn.stack(Plane, [angle * axn.cos(turned), angle * axn.sin(turned)]) / 9
points = spiral + 0.015 * axn.random.normal(jax.random.key(0), spiral.axes)
points

# %% [markdown]
# ## The model
#
# Modules are Equinox modules whose parameters are named arrays. This one knows the axes
# `plane` and `classes`; whatever else its input has, passes through.


# %%
class Separator(eqx.Module):
    features: nn.Linear
    mlp: nn.MLP

    @staticmethod
    def init(*, key):
        k_features, k_mlp = jax.random.split(key)
        features = nn.Linear.init(Plane, Mlp, key=k_features, init_scale=6.0)
        mlp = nn.MLP.init(Mlp, Classes, Mlp, depth=2, activation=nn.gelu, key=k_mlp)
        return Separator(features, mlp)

    def __call__(self, x):
        return self.mlp(axn.sin(self.features(x)))


model = Separator.init(key=jax.random.key(1))
axn.partitioning.show(model)

# %% [markdown]
# ## A training step
#
# JAX and Optax take the model as it is. `jax.grad` wants a plain scalar: `.scalar()`.

# %%
optimizer = optax.adamw(3e-3)


def loss_fn(model, points, labels):
    return nn.cross_entropy_loss(model(points), Classes, labels).scalar()


@axn.named_jit
def step(model, state, points, labels):
    loss, gradients = jax.value_and_grad(loss_fn)(model, points, labels)
    updates, state = optimizer.update(gradients, state, model)
    return optax.apply_updates(model, updates), state, loss


state = optimizer.init(model)
losses = []
for _ in range(200):
    model, state, loss = step(model, state, points, labels)
    losses.append(float(loss))
print(f"loss {losses[0]:.3f} -> {losses[-1]:.4f}")

# %% [markdown]
# ## What it has learned
#
# The same model, called on a grid: the axis `point` is gone, `row` and `column` are new,
# and the model does not need to know.

# %%
Row, Column = axn.make_axes(row=150, column=150)
y = axn.linspace(Row, start=-1.3, stop=1.3)
x = axn.linspace(Column, start=-1.3, stop=1.3)
grid = axn.stack(
    Plane, axn.broadcast_arrays(x.broadcast_axis(Row), y.broadcast_axis(Column))
)
share = axn.softmax(model(grid), Classes)["classes", 1].rearrange(("row", "column"))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(losses)
left.set(xlabel="step", ylabel="loss (nats)", yscale="log")
right.imshow(share.array, extent=(-1.3, 1.3, -1.3, 1.3), origin="lower", cmap="RdBu")
right.scatter(
    points["plane", 0].array,
    points["plane", 1].array,
    c=labels.array,
    s=9,
    cmap="RdBu",
)
right.axis("off")
