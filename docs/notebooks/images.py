# %% [markdown]
# # An image model: where does a transformer look?
#
# A small vision transformer learns to read the handwritten digits of scikit-learn, and
# shows which parts of an image it reads them from. The gallery has a
# [larger one](../gallery.md), which also runs on a mesh.

# %%
import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

import axonym as axn
import axonym.nn as nn

Row, Column, High, Wide = axn.make_axes(
    row=4, column=4, patch_height=2, patch_width=2
)
Embed, Heads, HeadDim, Mlp = axn.make_axes(embed=48, heads=4, head_dim=12, mlp=96)
Batch, Classes = axn.make_axes(batch=64, classes=10)

# %% [markdown]
# ## Images are cut by name
#
# Eight by eight pixels become four by four patches of two by two. Both splits together
# give four axes, and a `Linear` may take two of them as its input.

# %%
data = load_digits()
order = np.random.default_rng(0).permutation(len(data.target))
pixels = (data.images[order] / 8 - 1).astype(np.float32)
images = axn.named(pixels, ("image", "height", "width"))
images = images.unflatten_axis("height", (Row, High)).unflatten_axis(
    "width", (Column, Wide)
)
labels = axn.named(data.target[order].astype(np.int32), "image")
images

# %% [markdown]
# ## The model
#
# A query that is learned, one for each head, looks at all patches and takes what it needs
# from them. We keep its weights, to see them later.


# %%
class Block(eqx.Module):
    norms: tuple[nn.LayerNorm, nn.LayerNorm]
    qkv: nn.Linear
    out: nn.Linear
    mlp: nn.MLP

    @staticmethod
    def init(*, key):
        k_qkv, k_out, k_mlp = jax.random.split(key, 3)
        return Block(
            (nn.LayerNorm.init(Embed), nn.LayerNorm.init(Embed)),
            nn.Linear.init(Embed, (axn.Axis("qkv", 3), Heads, HeadDim), key=k_qkv),
            nn.Linear.init((Heads, HeadDim), Embed, key=k_out),
            nn.MLP.init(Embed, Embed, Mlp, depth=1, activation=nn.gelu, key=k_mlp),
        )

    def __call__(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unbind("qkv")
        k, v = k.rename({"patch": "patch.key"}), v.rename({"patch": "patch.key"})
        attended = nn.dot_product_attention("patch", "patch.key", HeadDim, q, k, v)
        x = x + self.out(attended)
        return x + self.mlp(self.norms[1](x))


class Reader(eqx.Module):
    patches: nn.Linear
    positions: axn.NamedArray
    block: Block
    look: axn.NamedArray
    key: nn.Linear
    head: nn.Linear

    @staticmethod
    def init(*, key):
        keys = jax.random.split(key, 6)
        return Reader(
            nn.Linear.init((High, Wide), Embed, key=keys[0]),
            0.1 * axn.random.normal(keys[1], (Row, Column, Embed)),
            Block.init(key=keys[2]),
            axn.random.normal(keys[3], (Heads, HeadDim)),
            nn.Linear.init(Embed, (Heads, HeadDim), key=keys[4]),
            nn.Linear.init((Heads, Embed), Classes, key=keys[5]),
        )

    def __call__(self, images):
        x = (self.patches(images) + self.positions).flatten_axes(
            (Row, Column), "patch"
        )
        x = self.block(x)
        weights = axn.softmax(axn.dot(self.look, self.key(x), axis=HeadDim), "patch")
        return self.head(axn.dot(weights, x, axis="patch")), weights


# %% [markdown]
# ## Training
#
# A batch is drawn by an index with the axis `batch`: the axis `image` goes, `batch` comes.

# %%
optimizer = optax.adamw(optax.cosine_onecycle_schedule(600, 3e-3))
train, held_out = images["image", 360:], images["image", :360]


def loss_fn(model, images, labels):
    return nn.cross_entropy_loss(model(images)[0], Classes, labels).scalar()


@axn.named_jit(donate_args=(True, True))
def step(model, state, images, labels, key):
    k_batch, k_noise = jax.random.split(key)
    batch = axn.random.randint(k_batch, Batch, 0, images.axis_size("image"))
    x = images["image", batch]
    x = x + 0.5 * axn.random.normal(k_noise, x.axes)
    loss, gradients = jax.value_and_grad(loss_fn)(model, x, labels["image", batch])
    updates, state = optimizer.update(gradients, state, model)
    return optax.apply_updates(model, updates), state, loss


model = Reader.init(key=jax.random.key(0))
state = optimizer.init(model)
losses = []
for key in jax.random.split(jax.random.key(1), 600):
    model, state, loss = step(model, state, train, labels["image", 360:], key)
    losses.append(float(loss))

scores, weights = axn.named_jit(Reader.__call__)(model, held_out)
correct = scores.argmax(Classes) == labels["image", :360]
print(f"{correct.mean().item():.1%} of the held-out digits are read correctly")

# %% [markdown]
# ## Where it looks
#
# The weights of the four heads over the patches, on top of the digits. `patch` becomes
# `row` and `column` again, and each patch four pixels.

# %%
where = (
    weights.unflatten_axis("patch", (Row, Column)).repeat(2, Row).repeat(2, Column)
)
whole = held_out.flatten_axes((Row, High), "height").flatten_axes(
    (Column, Wide), "width"
)
figure, axes = plt.subplots(5, 8, figsize=(9, 5.6), layout="constrained")
for i, column in enumerate(axes.T):
    for cell in column:
        cell.imshow(whole["image", i].array, cmap="gray_r")
        cell.axis("off")
    for head, cell in enumerate(column[1:]):
        heat = where["image", i, "heads", head].rearrange(("row", "column"))
        cell.imshow(
            0 * heat.array, cmap="autumn", alpha=heat.array / heat.max().item()
        )
