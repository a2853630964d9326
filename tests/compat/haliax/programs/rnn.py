"""A recurrent net by scan and fold: a gated cell, read forwards with its states and backwards with its last one."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.random as jrandom
from haliax import Axis, NamedArray

Vocab, Embed, Hidden, Gates, Classes = hax.make_axes(vocab=12, embed=6, hidden=8, gate=3, classes=3)
Pos = Axis("position", 5)


class GruCell(eqx.Module):
    input_gates: hnn.Linear
    state_gates: hnn.Linear
    new_bias: NamedArray

    @staticmethod
    def init(In: Axis, Hidden: Axis, *, key) -> "GruCell":
        k_input, k_state, k_bias = jrandom.split(key, 3)
        return GruCell(
            hnn.Linear.init(In, (Gates, Hidden), key=k_input),
            hnn.Linear.init(Hidden, (Gates, Hidden.alias("out")), key=k_state, use_bias=False),
            hax.random.uniform(k_bias, Hidden, minval=-0.1, maxval=0.1),
        )

    def __call__(self, state: NamedArray, x: NamedArray) -> NamedArray:
        from_input = self.input_gates(x)
        from_state = self.state_gates(state).rename({"out": "hidden"})
        reset = hnn.sigmoid(from_input["gate", 0] + from_state["gate", 0])
        update = hnn.sigmoid(from_input["gate", 1] + from_state["gate", 1])
        new = hax.tanh(from_input["gate", 2] + reset * (from_state["gate", 2] + self.new_bias))
        return new + update * (state - new)


class Classifier(eqx.Module):
    embedding: hnn.Embedding
    forwards: GruCell
    backwards: GruCell
    head: hnn.Linear

    @staticmethod
    def init(*, key) -> "Classifier":
        k_embedding, k_forwards, k_backwards, k_head = jrandom.split(key, 4)
        Both = Axis("both", 2 * Hidden.size)
        return Classifier(
            hnn.Embedding.init(Vocab, Embed, init_scale=Embed.size, key=k_embedding),
            GruCell.init(Embed, Hidden, key=k_forwards),
            GruCell.init(Embed, Hidden, key=k_backwards),
            hnn.Linear.init(Both, Classes, key=k_head),
        )

    def states(self, x: NamedArray) -> tuple[NamedArray, NamedArray]:
        batch = hax.axis.without_axes(x.axes, (Pos, Embed))
        start = hax.zeros((*batch, Hidden))

        def step(state, x):
            state = self.forwards(state, x)
            return state, state

        _, all_states = hax.scan(step, Pos, remat=True)(start, x)
        last = hax.fold(self.backwards, "position", reverse=True)(start, x)
        return all_states, last

    def __call__(self, ids: NamedArray) -> NamedArray:
        all_states, last = self.states(self.embedding(ids))
        return self.head(hax.concatenate("hidden", [hax.mean(all_states, Pos), last]).rename({"hidden": "both"}))


def loss_fn(model: Classifier, ids: NamedArray, labels: NamedArray):
    targets = hnn.one_hot(labels, Classes)
    return hnn.cross_entropy_loss(model(ids), Classes, targets).scalar()
