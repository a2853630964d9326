"""The options of a training run, and which of them make sense."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Literal

import tyro
from layouts import DEFAULT, STRATEGIES, Layout, Shape, layout_of, read_mesh
from metrics import TrackerName
from processes import Processes
from shapes import SHAPES, ShapeName
from trainer import Recipe

from axonym.models import DecoderConfig, ExpertsConfig


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a training run.

    Attributes:
        recipe: how the model is trained.
        together: which of many processes this is.
        mesh: devices along mesh axes by name, such as data=2,stage=2,model=2, from which the mappings follow: data,
            stage (a pipeline), context (positions), expert and model. Or two numbers, for the axes data and model of
            a strategy; by default 4 and 2, or 1 and 1 for a single device.
        axis_types: how JAX treats shardings: decided by the compiler, or part of types.
        data: texts (plain, .jsonl, .parquet, or a folder), or a file of tokens; by default the source of Python's
            standard library.
        mix: several texts in place of one, each with its weight, such as code.npy:0.7 books/:0.3: rows come from them
            in these shares.
        documents: how rows are made of them: windows of all joined, which see across their ends; windows that are
            masked there; or whole documents packed side by side.
        tokenizer: a `tokenizer.json`; by default tokens are bytes.
        start: the folder of a model to start from; the options of sizes do not count then.
        shape: a model of known sizes; the options of sizes do not count then.
        family: the form of the model.
        layers: number of blocks.
        embed: width of the residual stream.
        heads: number of attention heads.
        rounds: how often a pipeline passes all of its stages; more make the time shorter in which they wait.
        kv_heads: number of heads of keys and values; by default as many.
        experts: number of experts in place of each perceptron, of which a token goes to two; by default none.
        positions: tokens per sequence.
        dropout: probability of dropping.
        batch: sequences per step.
        seed: of parameters, data order and dropout.
        evaluate_every: steps between looks at the held-out text; 0 looks at the end only.
        save_every: steps between checkpoints; 0 keeps none.
        keep: how many of the last checkpoints are kept.
        keep_every: checkpoints of every so many steps are kept, too.
        sample: tokens to generate at the end.
        tensorboard: write numbers for TensorBoard, too.
        log: send numbers to W&B or trackio, too.
        project: of the run there.
        profile: steps of which a trace is written, after the first two.
        dry_run: show layouts and memory, and end; the mesh may be larger than the machine.
        target: of a dry run: tell what a step costs on such devices.
        depth: where that comes from: the program of a compiler, or the types of the step, which takes seconds on
            meshes of any size.
        out: the folder of the run.
    """

    recipe: tyro.conf.OmitArgPrefixes[Recipe] = Recipe()  # noqa: RUF009  # it is frozen
    together: tyro.conf.OmitArgPrefixes[Processes] = Processes()  # noqa: RUF009
    mesh: tuple[int, int] | str | None = None
    axis_types: Literal["auto", "explicit"] = "auto"
    data: Path | None = None
    mix: tuple[str, ...] = ()
    documents: Literal["joined", "masked", "packed"] = "joined"
    tokenizer: Path | None = None
    start: Path | None = None
    shape: ShapeName | None = None
    family: Literal["llama", "gpt2"] = "llama"
    layers: int = 4
    rounds: int = 1
    embed: int = 128
    heads: int = 4
    kv_heads: int | None = None
    experts: int | None = None
    positions: int = 128
    dropout: float = 0.05
    batch: int = 32
    seed: int = 0
    evaluate_every: int = 0
    save_every: int = 0
    keep: int = 2
    keep_every: int | None = None
    sample: int = 96
    tensorboard: bool = False
    log: TrackerName | None = None
    project: str = "axonym"
    profile: int = 0
    dry_run: bool = False
    target: Literal["v5e", "v5p", "v6e", "h100", "cpu"] | None = None
    depth: Literal["compiled", "traced"] = "compiled"
    out: Path = Path(__file__).parent / "run"

    @functools.cached_property
    def mesh_shape(self) -> Shape:
        if isinstance(self.mesh, str):
            return read_mesh(self.mesh)
        if self.mesh is not None:
            return self.mesh
        return (1, 1) if self.recipe.strategy == "single" else (4, 2)

    @functools.cached_property
    def texts(self) -> list[tuple[Path | None, float]]:
        """The texts, and the share of rows that comes from each.

        Raises:
            ValueError: if there is `data`, too, or a text has no weight.
        """
        if not self.mix:
            return [(self.data, 1.0)]
        if self.data is not None:
            raise ValueError(f"data={self.data} and mix={' '.join(self.mix)} both say the texts: pass one of them")
        found = [read_weight(text) for text in self.mix]
        total = sum(weight for _, weight in found)
        return [(path, round(weight / total, 6)) for path, weight in found]

    @functools.cached_property
    def layout(self) -> Layout:
        """The mappings of the run.

        Raises:
            ValueError: if a mesh by names is given together with a strategy, or one of two numbers with `fsdp`.
        """
        recipe, shape = self.recipe, self.mesh_shape
        if isinstance(shape, tuple):
            if recipe.fsdp:
                told = " ".join(map(str, shape))
                raise ValueError(f"fsdp is for a mesh by names, and mesh={told}: pass strategy=fsdp, or mesh=data=8")
            return Layout(*STRATEGIES[recipe.strategy or DEFAULT])
        if recipe.strategy is not None:
            raise ValueError(f"strategy={recipe.strategy} and mesh={self.mesh} both say the mappings: pass one of them")
        return layout_of(shape, fsdp=recipe.fsdp, microbatches=recipe.microbatches)

    @property
    def layout_name(self) -> str:
        if isinstance(self.mesh, str):
            return f"{self.mesh}, fsdp" if self.recipe.fsdp else self.mesh
        return self.recipe.strategy or DEFAULT

    @property
    def microbatches(self) -> int:
        return self.recipe.microbatches or self.layout.pipelined or 2

    @property
    def parts(self) -> int:
        """Parts of a batch that are computed one after the other; a pipeline gets the whole batch, and cuts it."""
        return 1 if self.layout.pipelined else self.microbatches

    def spelled(self) -> dict[str, str]:
        """Return the options that make a run what it is, as text."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        own = {**fields, **{f"recipe.{key}": value for key, value in vars(self.recipe).items()}}
        own["recipe.microbatches"] = self.microbatches
        if self.mix:
            own["weights"] = [weight for _, weight in self.texts]
        return {key: str(value) for key, value in own.items() if key not in MAY_CHANGE}


# The least that each of these options can be.
LEAST = {
    **dict.fromkeys(
        ("layers", "rounds", "embed", "heads", "experts", "positions", "batch", "keep", "recipe.microbatches"), 1
    ),
    **dict.fromkeys(("recipe.steps", "recipe.warmup", "seed", "sample", "evaluate_every", "save_every", "profile"), 0),
}
# Where a run goes, and how often it looks up: these may differ when it goes on.
MAY_CHANGE = {
    *("recipe", "recipe.strategy", "recipe.fsdp", "together", "mesh", "axis_types", "out"),
    *(
        "evaluate_every",
        "save_every",
        "keep",
        "keep_every",
        "sample",
        "tensorboard",
        "log",
        "project",
        "profile",
        "dry_run",
    ),
    *("target", "depth"),
    # The fingerprint of the tokens is compared, and the weights of a mixture.
    *("data", "mix", "tokenizer"),
}
# These may differ, too, and a resumed run prints the difference.
MAY_CHANGE_ALOUD = {"batch", "recipe.steps", "recipe.warmup", "recipe.learning_rate", "recipe.schedule"}


def read_weight(text: str) -> tuple[Path, float]:
    """Read the path of a text and its weight.

    Raises:
        ValueError: if there is no weight, or one that makes no sense.
    """
    path, _, weight = text.rpartition(":")
    try:
        number = float(weight)
    except ValueError:
        number = 0.0
    if not path or not 0 < number < math.inf:
        raise ValueError(f"mix={text} must be a path and a weight above 0, such as {path or text}:0.5")
    return Path(path), number


def make_config(options: Options, vocab: int) -> DecoderConfig:
    """Return the sizes and forms of a new model."""
    if options.shape is not None:
        return shaped(options, SHAPES[options.shape], vocab)
    if options.embed % options.heads:
        sizes = f"embed={options.embed} is not a multiple of heads={options.heads}"
        raise ValueError(f"heads must divide embed: {sizes}")
    config = DecoderConfig(
        vocab=vocab,
        layers=options.layers,
        embed=options.embed,
        # A gate makes three matrices of two: so wide, they have as many numbers.
        mlp=32 * round(8 * options.embed / 3 / 32) or 32,
        heads=options.heads,
        kv_heads=options.kv_heads or options.heads,
        head_dim=options.embed // options.heads,
        positions=options.positions,
        dropout=options.dropout,
        rounds=options.rounds,
    )
    if options.experts is not None:
        if options.family == "gpt2":
            raise ValueError(f"experts={options.experts}, but family=gpt2 has none: pass family=llama")
        chosen = min(2, options.experts)
        config = dataclasses.replace(config, experts=ExpertsConfig(options.experts, chosen, config.mlp))
    if options.family == "llama":
        return config
    return dataclasses.replace(config.as_gpt2(), mlp=4 * options.embed)


def shaped(options: Options, config: DecoderConfig, vocab: int) -> DecoderConfig:
    """Return a model of known sizes.

    Raises:
        ValueError: if it would be trained on tokens of another vocabulary.
    """
    if config.vocab != vocab and not options.dry_run:
        own = f"shape={options.shape} has {config.vocab} tokens, and the tokenizer has {vocab}"
        raise ValueError(f"{own}: pass the tokenizer of that model, or --dry-run")
    return dataclasses.replace(config, dropout=options.dropout, rounds=options.rounds)


def check_options(options: Options) -> None:
    """Refuse values that make no sense, and a folder that cannot be written, before anything is read.

    Raises:
        ValueError: for a value.
        OSError: for the folder.
    """
    for name, least in LEAST.items():
        value = functools.reduce(getattr, name.split("."), options)
        if value is not None and value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if options.start is not None and options.rounds > 1:
        raise ValueError(f"rounds={options.rounds} is for new models, and start={options.start} has one: leave one out")
    if options.start is not None and options.shape is not None:
        raise ValueError(f"shape={options.shape} and start={options.start} both say the sizes: pass one of them")
    if options.target is not None and not options.dry_run:
        raise ValueError(f"target={options.target} is for a dry run: pass --dry-run")
    _ = options.layout, options.texts
    out = options.out
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent.absolute()} for out={out}")
    try:
        out.mkdir(exist_ok=True)
        probe = out / ".writable"
        probe.write_text("")
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(f"nothing can be written to out={out}: {error.strerror}") from None
