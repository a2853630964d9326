"""A run: what it reads, where it begins, and what it keeps."""

import dataclasses
import functools
import sys
from typing import Any

import jax
import numpy as np
from data import Tokens, fingerprint, load_tokens, train_valid_split
from layouts import abstract_mesh, make_mesh
from mixture import Mixture
from options import MAY_CHANGE_ALOUD, Options, check_options, make_config
from processes import is_first
from rows import Batch, Packed, Rows, Windows, batch_of
from trainer import State, Trainer

import axonym as axn
from axonym import NamedArray
from axonym.models import Bytes, DecoderConfig, Tokenizer, Vocabulary, load, read_config, read_tokenizer
from axonym.models.files import read_json
from axonym.models.tokenizer import check_tokens


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: what it reads, where it is, and where it goes.

    Attributes:
        options: of the command.
        tokenizer: of the texts.
        train: the tokens of each text.
        valid: those that are held out of each.
        config: of the model.
        mesh: of the devices.
    """

    options: Options
    tokenizer: Tokenizer
    train: tuple[Tokens, ...]
    valid: tuple[Tokens, ...]
    config: DecoderConfig
    mesh: jax.sharding.Mesh

    @functools.cached_property
    def trainer(self) -> Trainer:
        return Trainer(self.options.recipe, self.config, self.options.layout)

    @functools.cached_property
    def sources(self) -> tuple[Rows, Rows]:
        """The rows to train on, and those that are held out."""
        if not self.options.mix:
            return self.source(*self.train), self.source(*self.valid)
        weights = [weight for _, weight in self.options.texts]
        train, valid = (Mixture([self.source(text) for text in texts], weights) for texts in (self.train, self.valid))
        return train, valid

    @functools.cached_property
    def checkpoints(self) -> Any:
        """The checkpoints of the run; None where none are kept."""
        if not self.options.save_every:
            return None
        from checkpoint import Checkpoints

        return Checkpoints(self.options.out / "checkpoints", self.options.keep, self.options.keep_every)

    def source(self, tokens: Tokens) -> Rows:
        """Return where rows of some tokens come from."""
        options = self.options
        if options.documents == "joined":
            return Windows(tokens, options.positions, options.seed)
        if not self.tokenizer.ends:
            raise ValueError(f"documents={options.documents}, but the tokenizer has no token that ends a document")
        end = self.tokenizer.ends[0]
        if options.documents == "masked":
            return Windows(tokens, options.positions, options.seed, end)
        return Packed(tokens, options.positions, options.seed, end)

    def batch(self, source: Rows, step: int, microbatches: int) -> Batch:
        """Draw the batch of a step, and put it on the devices; of many processes, each draws its own rows."""
        size = self.options.batch
        padded = self.trainer.count_rows(size // microbatches, self.mesh)
        own = self.trainer.own_rows(padded, self.mesh)
        batch = batch_of(source, step, size, microbatches, own, padded)
        # Of each batch: a file of tokens may be too large to be read before.
        told = " and ".join(self.options.mix) or str(self.options.data or "the text")
        check_tokens(np.asarray(batch.tokens.array), self.config.vocab, told)
        return self.trainer.place(batch, self.mesh)

    def train_batch(self, step: int) -> Batch:
        return self.batch(self.sources[0], step, self.options.parts)

    def held_out(self, state: State) -> float:
        """Return the loss of the held-out text, under the average of the parameters where there is one."""
        model = state.model if state.average is None else state.average
        parts = (self.batch(self.sources[1], i, 1).part(0) for i in range(8))
        return float(np.mean([self.trainer.evaluate(model, part) for part in parts]))

    def begin(self) -> tuple[State, int]:
        """Return the state to go on with, and the number of steps that were taken."""
        while self.checkpoints is not None and (step := self.checkpoints.latest()) is not None:
            from checkpoint import DamagedError

            template = jax.eval_shape(self.trainer.init, jax.random.key(0))
            try:
                about = self.checkpoints.about(step)
                told = self.check_same(about, step)
                state = self.checkpoints.restore(step, template, self.trainer.shardings(template, self.mesh))
            except DamagedError as error:
                where = f"the checkpoint of step {step} is damaged"
                if jax.process_count() > 1:
                    raise ValueError(f"{where}: {error}; remove {self.checkpoints.path(step)}") from error
                print(f"warning: {where}, now in {self.checkpoints.set_aside(step)}: {error}", file=sys.stderr)
                continue
            if isinstance(self.sources[0], Mixture):
                self.sources[0].go_on(about["mixture"], step, self.options.batch)
            if is_first():
                print(f"going on after {step} steps{told}", file=sys.stderr)
            return state, step
        if self.options.start is None:
            return self.trainer.init(jax.random.fold_in(jax.random.key(self.options.seed), 0)), 0
        places = {"mapping": self.trainer.mappings[0], "mesh": self.mesh}
        model = load(self.options.start, dropout=self.options.dropout, **places)
        return axn.named_jit(self.trainer.state, axis_resources=self.trainer.mappings[0])(model), 0

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """The options and the tokens of the run; a checkpoint keeps them, to compare when it is resumed."""
        prints = [fingerprint(tokens) for tokens in (*self.train, *self.valid)]
        tokens = [*prints, self.tokenizer.vocab, list(self.tokenizer.ends)]
        return {"options": self.options.spelled(), "tokens": tokens}

    def check_same(self, saved: dict[str, Any], step: int) -> str:
        """Refuse to go on with another run; say what differs that may."""
        own, before = self.about["options"], saved["options"]
        differ = {
            key: f"{key}={own[key]!r}, but it was {before.get(key)!r}" for key in own if own[key] != before.get(key)
        }
        aloud = [differ.pop(key) for key in list(differ) if key in MAY_CHANGE_ALOUD]
        flaws = [f"other options: {'; '.join(differ.values())}"] if differ else []
        # Checkpoints of earlier releases know no tokens.
        if saved.get("tokens", self.about["tokens"]) != self.about["tokens"]:
            flaws.append("another text or tokenizer")
        if flaws:
            where = f"{self.options.out} has a run of {step} steps with {' and '.join(flaws)}"
            raise ValueError(f"{where}; pass another --out")
        if not aloud:
            return ""
        rows = "each step draws the rows that it draws in a run with these options"
        if self.options.mix:
            rows = "the mixture goes on with its next row"
        return f", with {'; '.join(aloud)}; the state and the text stay as they were, and {rows}"

    def save(self, state: State, step: int, *, wait: bool = False) -> None:
        """Keep a checkpoint, if any are kept."""
        if self.checkpoints is None:
            return
        source, about = self.sources[0], self.about
        if isinstance(source, Mixture):
            about = {**about, "mixture": source.state(step, self.options.batch)}
        self.checkpoints.save(step, state, about, wait=wait)

    def last_checkpoint(self) -> str:
        """Say which checkpoint is the last."""
        step = None if self.checkpoints is None else self.checkpoints.latest()
        if step is None:
            return "there is no checkpoint"
        return f"the last good checkpoint: {self.checkpoints.path(step)}"


def check(run: Run) -> None:
    """Refuse what cannot work, before anything is compiled."""
    options, config = run.options, run.config
    if options.positions > config.positions:
        raise ValueError(f"positions={options.positions}, but the model knows {config.positions}")
    for name, texts in (("held-out text", run.valid), ("text", run.train)):
        for tokens, (path, _) in zip(texts, options.texts, strict=True):
            if tokens.size <= options.positions:
                whole = f"{name} of {path}" if options.mix else name
                need = f"{options.positions + 1} tokens for one sequence"
                raise ValueError(f"the {whole} has {tokens.size} tokens and must have {need}: give more text")
    if "experts" in run.trainer.mappings[1] and config.experts is None:
        raise ValueError(f"mesh={options.mesh} divides experts, and the model has none: pass experts=4")
    microbatches = options.microbatches
    if options.batch % microbatches:
        raise ValueError(f"batch={options.batch} is not a multiple of microbatches={microbatches}")
    padded = run.trainer.count_rows(options.batch // options.parts, run.mesh)
    rows = {"batch": padded, "pos": options.positions}
    tokens = NamedArray(np.zeros(tuple(rows.values()), np.int32), tuple(rows))
    parameters, compute = run.trainer.mappings
    state = jax.eval_shape(run.trainer.fresh, jax.random.key(0))
    axn.pspec_for(state, parameters, run.mesh)
    axn.pspec_for(tokens, compute, run.mesh, strict=False)


def prepare(options: Options) -> Run:
    """Read what a run needs."""
    check_options(options)
    if options.start is not None:
        tokenizer = read_tokenizer(options.start)
    else:
        tokenizer = Vocabulary(options.tokenizer) if options.tokenizer else Bytes()
    end = tokenizer.ends[0] if tokenizer.ends else None
    splits = [train_valid_split(load_tokens(path, tokenizer), end=end) for path, _ in options.texts]
    train, valid = tuple(zip(*splits, strict=True))
    if options.start is not None:
        config = dataclasses.replace(read_config(read_json(options.start / "config.json")), dropout=options.dropout)
    else:
        config = make_config(options, tokenizer.vocab)
    make = abstract_mesh if options.dry_run else make_mesh
    run = Run(options, tokenizer, train, valid, config, make(options.mesh_shape, options.axis_types))
    check(run)
    return run
