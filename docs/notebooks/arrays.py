# %% [markdown]
# # Arrays: waves on a pond
#
# Named arrays by an example: stones fall into a pond, and we watch the waves. Nothing in
# this notebook knows in which order axes are stored.

# %%
import matplotlib.pyplot as plt

import axonym as axn

Row, Column, Time, Stone = axn.make_axes(row=80, column=120, time=90, stone=3)

# %% [markdown]
# ## Coordinates
#
# A coordinate is an array over its own axis. The distance of each point of the pond from
# each stone has three axes; no reshape, no `[:, None, :]`.

# %%
row, column = axn.arange(Row) * 1.0, axn.arange(Column) * 1.0
stones = {
    "row": axn.named([20.0, 60.0, 45.0], Stone),
    "column": axn.named([30.0, 45.0, 95.0], Stone),
}
down = row.broadcast_axis(Stone) - stones["row"]
across = column.broadcast_axis(Stone) - stones["column"]
distance = axn.sqrt(down.broadcast_axis(Column) ** 2 + across**2)
distance

# %% [markdown]
# The pond at rest, with a bump for each stone. A reduction names the axis that goes.

# %%
height = axn.exp(-((distance / 4) ** 2)).sum(Stone)
height.axes

# %% [markdown]
# A misspelled name is an error that says what is there:

# %%
try:
    height.mean("colunm")
except axn.errors.AxisNotFoundError as error:
    print(error)

# %% [markdown]
# ## The wave equation
#
# Each point is pulled towards the mean of its neighbours. `roll` and indexing take the
# axis by name, so the stencil reads like the formula.


# %%
def neighbours(x):
    shifted = [x.roll(by, axis) for axis in ("row", "column") for by in (-1, 1)]
    return sum(shifted) / 4


def tick(state, _):
    before, now = state
    after = 2 * now - before + 0.5 * (neighbours(now) - now) * 2
    return (now, 0.998 * after), now


run = axn.named_jit(
    lambda height: axn.scan(tick, Time)((height, height), axn.arange(Time))
)
_, film = run(height)
film

# %% [markdown]
# The film has a new axis, `time`, and all that could be done with an image can be done
# with a film: one frame, the energy over time, the highest point of each.

# %%
energy = (film**2).mean(("row", "column"))
print(film["time", 10].axes)
print(energy["time", ::30])

# %% [markdown]
# ## Six frames, side by side
#
# A picture needs positions: `rearrange` says which axis goes where.

# %%
frames = film["time", 0 : Time.size : 15]
sheet = frames.unflatten_axis("time", axn.make_axes(line=2, place=3)).rearrange(
    "{line row place column} -> (down: line row) (across: place column)"
)
plt.figure(figsize=(9, 4))
plt.imshow(sheet.array, cmap="RdBu", vmin=-0.4, vmax=0.4)
plt.axis("off")
