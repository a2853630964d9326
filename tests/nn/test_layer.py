"""Names of layers in compiled programs, and what a class says that is called in place of its `init`."""

import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import pytest

import axonym as axn
from axonym import NamedArray, nn, quant
from axonym.errors import OperandError
from tests.nn.layouts import made

Batch, Pos, Embed, Mlp = axn.make_axes(batch=2, pos=3, embed=4, mlp=8)
Vocab, Heads, HeadDim, Layers = axn.make_axes(vocab=16, heads=2, head_dim=2, layers=3)
KEY = jax.random.key(0)
IDS = axn.zeros((Batch, Pos), int)


class Mixer(eqx.Module):
    """A module of a user, in which nothing is said about names."""

    up: nn.Linear
    downs: dict[str, nn.Linear]

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.downs["first"](self.up(x))


class Model(eqx.Module):
    embeddings: nn.Embedding
    blocks: nn.Stacked[nn.TransformerBlock]
    mixer: Mixer
    norm: nn.LayerNorm

    @staticmethod
    def init() -> "Model":
        blocks = made(nn.Stacked.init(Layers, nn.TransformerBlock), Embed, Heads, HeadDim, Mlp)
        mixer = Mixer(linear(Embed, Mlp), {"first": linear(Mlp, Embed)})
        embeddings = made(nn.Embedding.init, Vocab, Embed)
        return Model(embeddings, blocks, mixer, nn.LayerNorm.init(Embed))

    def __call__(self, ids: NamedArray) -> NamedArray:
        x = self.blocks.fold(self.embeddings.embed(ids), nn.causal())
        return self.embeddings.unembed(self.norm(self.mixer(x)))


def linear(In: axn.Axis, Out: axn.Axis) -> nn.Linear:
    return made(nn.Linear.init, In, Out)


def loss(model: Model, ids: NamedArray) -> jax.Array:
    return model(ids).sum().array


def names_in(fn: Callable[..., Any], *arguments: Any) -> set[str]:
    """Return the names of operations in a compiled program, without what JAX adds around the names of layers."""
    text = jax.jit(fn).lower(*arguments).compile().as_text()
    assert text is not None
    names = re.findall(r'op_name="jit\([^)]*\)/([^"]*)"', text)
    return {re.sub(r"while/body/((closed_call|eval_jaxpr)/)?|checkpoint/", "", name) for name in names}


def test_operations_carry_the_path_of_their_layer() -> None:
    found = names_in(loss, Model.init(), IDS)
    assert {
        "embeddings/gather",
        "blocks/TransformerBlock/attention_norm/rsqrt",
        "blocks/TransformerBlock/attention/query/dot_general",
        "blocks/TransformerBlock/attention/out/dot_general",
        "blocks/TransformerBlock/mlp/layers.0/dot_general",
        "mixer/up/dot_general",
        "mixer/downs.first/dot_general",
        "norm/rsqrt",
        "embeddings/dot_general",
    } <= found


def test_so_do_their_gradients() -> None:
    found = names_in(jax.grad(loss), Model.init(), IDS)
    assert "transpose(jvp(blocks))/TransformerBlock/attention/query/dot_general" in found
    assert "transpose(jvp(mixer/up))/dot_general" in found


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (linear(Embed, Mlp), "Linear/dot_general"),
        (made(nn.MLP.init, Embed, Embed, Mlp, 1), "MLP/layers.1/dot_general"),
        (nn.Sequential([nn.gelu, linear(Embed, Mlp)]), "Sequential/layers.1/dot_general"),
    ],
    ids=["Linear", "MLP", "Sequential"],
)
def test_a_layer_in_no_module_is_called_by_its_class(layer: eqx.Module, expected: str) -> None:
    found = names_in(lambda x: layer(x), axn.zeros((Batch, Embed)))  # type: ignore[operator]
    assert expected in found


def test_a_method_that_calls_another_one_of_its_layer_adds_no_second_name() -> None:
    table = made(nn.Embedding.init, Vocab, Embed)
    assert names_in(lambda ids: table(ids), IDS) >= {"Embedding/gather"}


def test_layers_of_subclasses_and_argument_trees_are_named_too() -> None:
    class Twice(nn.Linear):
        def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
            return super().__call__(super().__call__(x))

    class Model(eqx.Module):
        stack: nn.BlockSeq[Twice]

        def __call__(self, pair: dict[str, NamedArray]) -> dict[str, NamedArray]:
            def step(layer: Twice, pair: dict[str, NamedArray]) -> dict[str, NamedArray]:
                return {"x": layer(pair["x"])}

            return self.stack.fold_via(step)(pair)

    stack = made(nn.BlockSeq.init(Layers.resize(1), Twice), Embed, Embed)
    found = names_in(lambda model, x: model(x), Model(stack), {"x": axn.zeros((Batch, Embed))})
    assert "stack/blocks.0/dot_general" in found


def test_layers_of_several_kinds_are_told_apart() -> None:
    class Model(eqx.Module):
        blocks: nn.Interleaved[nn.Linear]

        def __call__(self, x: NamedArray) -> NamedArray:
            return self.blocks.fold(x)

    square = nn.Linear.init
    stack = made(nn.Interleaved.init(Layers.resize(5), (square, square)), Embed, Embed)
    found = names_in(loss, Model(stack), axn.zeros((Batch, Embed)))
    kinds = {name for name in found if name.endswith("dot_general")}
    ways = ("repeated.0/Linear", "repeated.1/Linear", "rest.0")
    assert kinds == {f"blocks/{way}/dot_general" for way in ways}


def test_the_layers_of_a_pipeline_keep_their_path() -> None:
    class Model(eqx.Module):
        blocks: nn.Stacked[nn.Linear]

        def __call__(self, x: NamedArray) -> NamedArray:
            return self.blocks.fold(x)

    Deep = Layers.resize(8)
    model = Model(made(nn.Stacked.init(Deep, nn.Linear), Embed, Embed))
    mesh, mapping = jax.make_mesh((2,), ("stage",)), {"layers": "stage", "batch": "stage"}
    with axn.set_mesh(mesh), axn.axis_mapping(mapping), axn.pipelined("batch", 2):
        found = names_in(loss, model, axn.zeros((Batch, Embed)))
    products = {name for name in found if name.endswith("dot_general")}
    assert products
    assert all(name.startswith("blocks/") for name in products)


def test_eager_calls_look_for_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> str:
        raise AssertionError

    monkeypatch.setattr(nn.layer, "_find_scope", forbidden)
    linear(Embed, Mlp)(axn.zeros((Batch, Embed)))
    with pytest.raises(AssertionError):
        jax.eval_shape(linear(Embed, Mlp), axn.zeros((Batch, Embed)))


MADE = [
    cls
    for cls in (*(getattr(nn, name) for name in nn.__all__), *vars(quant).values())
    if isinstance(cls, type) and issubclass(cls, eqx.Module) and "init" in vars(cls)
]


@pytest.mark.parametrize("layer", MADE, ids=lambda cls: cls.__name__)
def test_every_layer_that_is_made_by_init_says_so(layer: type) -> None:
    with pytest.raises(OperandError, match=rf"{layer.__name__}\.init\("):
        layer(Embed, no_field=Mlp)


def test_the_message_has_the_fields_and_the_arguments() -> None:
    with pytest.raises(OperandError) as raised:
        nn.Linear(Embed, Mlp, key=KEY)
    assert str(raised.value) == (
        "Linear: Linear(...) fills in the fields weight, bias, In, Out, dot_general\n"
        "  hint: to make a layer, write Linear.init(In, Out, key=...)"
    )


def test_errors_inside_of_a_constructor_stay_as_they_are() -> None:
    class Strict(nn.Linear):
        def __check_init__(self) -> None:
            raise TypeError("no")

    with pytest.raises(TypeError, match=r"^no$"):
        Strict(None, None, (), ())


def test_a_layer_that_has_no_init_is_made_by_its_fields() -> None:
    with pytest.raises(TypeError, match="Dropout: there is no argument 'rate'"):
        nn.Dropout(rate=0.1)


def test_a_layer_is_a_module_with_its_signature() -> None:
    assert issubclass(nn.Linear, eqx.Module)
    assert list(inspect.signature(nn.Linear).parameters) == ["weight", "bias", "In", "Out", "dot_general"]
    assert pickle.loads(pickle.dumps(nn.Linear)) is nn.Linear
