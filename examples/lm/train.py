"""Train a small language model, laid out by two dicts, which it prints.

    python train.py                             the source of Python's standard library, FSDP and tensor parallelism
    python train.py --strategy dp               another layout of the same run
    python train.py --mesh data=2,stage=2,model=2      mesh axes by name, from which the dicts follow: a pipeline, too
    python train.py --optimizer muon            Muon for matrices, and AdamW for everything else
    python train.py --data my_texts/            your own text
    python train.py --mix code.npy:0.7 books/:0.3      several texts, in these shares of the rows
    python train.py --start ~/Llama-3.2-1B      go on from a checkpoint of Hugging Face, on your own text
    python train.py --save-every 100            keep checkpoints; the same command again goes on with the last one
    python train.py --mesh 64 8 --dry-run       layouts and memory on 512 devices, without them
    python train.py --shape gpt2 --mesh data=16,model=4 --dry-run --target v5e      what a step costs there
    python train.py --coordinator host0:1234 --processes 2 --process-id 0      the first of two processes

Without an accelerator it simulates eight CPU devices. The folder of the run has the model as Hugging Face stores it,
for `generate.py`; a line of numbers for each step, in `metrics.jsonl`; and the curve of the loss.
"""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import jax
import numpy as np
import tyro
from costs import plan, simulate, step_cost, utilisation
from data import unigram_entropy
from faults import first_fault
from folder import copy_files, settings_of, write_tokenizer
from metrics import Metrics, Silent, open_tracker
from options import Options, check_options
from processes import Watch, any_of_all, is_first
from report import report, show_sample
from rows import ahead, batch_of
from run import Run, prepare
from tqdm import tqdm
from trainer import State, Told

import axonym as axn
from axonym.models import save

STOPPED = 128 + signal.SIGTERM  # the status of a program that SIGTERM ends
WARM = 2  # steps before a trace begins: the first one compiles


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """Collect signals to stop, instead of stopping in the middle of a step."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


def take_steps(run: Run, state: State, start: int, metrics: Metrics) -> State:
    """Take the steps of a run.

    Raises:
        FloatingPointError: where a loss or a gradient is not finite.
        SystemExit: after SIGTERM, once the state is saved.
    """
    options, trainer = run.options, run.trainer
    key = jax.random.fold_in(jax.random.key(options.seed), 1)
    steps = range(start, options.recipe.steps)
    bar = tqdm(steps, initial=start, total=options.recipe.steps, unit="step", disable=not is_first())
    profile = closing(Trace(options.out / "profile", options.profile))
    with asked_to_stop() as asked, closing(ahead(run.train_batch, steps)) as batches, profile as trace:
        for i in bar:
            trace.before(i - start)
            began, own = time.perf_counter(), jax.random.fold_in(key, i)
            batch = next(batches)
            state, told = trainer.step(state, batch, own)
            loss, gradient = float(told.loss), float(told.gradient)
            if not np.isfinite([loss, gradient]).all():
                fault = first_fault(trainer, state.model, batch, own)
                number = f"the loss of step {i} is {loss}, its gradient {gradient}"
                raise FloatingPointError(f"{number}; not finite first: {fault}; {run.last_checkpoint()}")
            numbers = numbers_of(run, told, time.perf_counter() - began)
            metrics.add(i, **numbers)
            bar.set_postfix(loss=f"{numbers['loss']:.3f}", tokens_per_s=f"{numbers['tokens_per_s']:,}")
            done, stops = i + 1, any_of_all(bool(asked))
            if options.evaluate_every and done % options.evaluate_every == 0:
                metrics.add(i, held_out=run.held_out(state))
            if options.save_every and (done % options.save_every == 0 or done == options.recipe.steps or stops):
                run.save(state, done, wait=stops)
            if stops:
                # Each process says so.
                print(f"\nstopped after {done} steps", file=sys.stderr)
                sys.exit(STOPPED)
    return state


class Trace:
    """A trace of some steps, for the profiler; of none where none are asked for.

    Args:
        folder: of the trace.
        steps: how many, after the first two.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps, self._is_on = folder, steps, False

    def before(self, taken: int) -> None:
        """Begin or end, after a number of steps."""
        if self._steps and taken == WARM:
            jax.profiler.start_trace(self._folder)
            self._is_on = True
        if taken == WARM + self._steps:
            self.close()

    def close(self) -> None:
        """Write the trace."""
        if self._is_on:
            jax.profiler.stop_trace()
            self._is_on = False
            print(f"\nthe trace: {self._folder}", file=sys.stderr)


def numbers_of(run: Run, told: Told, seconds: float) -> dict[str, float]:
    """Return what is told of a step."""
    options = run.options
    rate = options.batch * options.positions / seconds
    numbers = {"loss": float(told.loss), "gradient": float(told.gradient), "tokens_per_s": round(rate)}
    share = utilisation(rate, run.config, options.positions, run.mesh.devices.flatten().tolist())
    if share is not None:
        numbers["utilisation"] = round(share, 4)
    return numbers


def write(run: Run, state: State) -> None:
    """Write the model as Hugging Face stores it, and show a text of it."""
    model = state.model if state.average is None else state.average
    out, start, ends = run.options.out, run.options.start, list(run.tokenizer.ends)
    if start is None:
        # A list without tokens is none that other libraries read.
        save(model, out, **({"eos_token_id": ends} if ends else {}))
        if is_first():
            write_tokenizer(run.tokenizer, run.options.tokenizer, out)
    else:
        save(model, out, **settings_of(start))
        if is_first():
            copy_files(start, out)
    show_sample(run, model)


def make_metrics(options: Options, start: int) -> Metrics:
    """Make the metrics of this process."""
    if not is_first():
        return Silent()
    out = options.out
    tracker = open_tracker(options.log, options.project, out, options, start) if options.log else None
    return Metrics(out / "metrics.jsonl", start, out / "tensorboard" if options.tensorboard else None, tracker)


def main(options: Options) -> float | None:
    """Train, and return the held-out loss; a dry run has none, and is an error if the run would not fit."""
    run = prepare(options)
    if is_first():
        print(options.layout)
    if options.dry_run:
        rows = run.trainer.count_rows(options.batch // options.parts, run.mesh)
        print(plan(run.trainer, run.mesh, rows, options.positions))
        if options.target is not None:
            batch = batch_of(run.sources[0], 0, options.batch, options.parts, padded=rows)
            told = step_cost(run.trainer, run.mesh, batch, options.target, options.depth)
            print(f"\n{told}")
            if told.problems:
                raise ValueError("\n  ".join(told.problems))
        return None
    with axn.set_mesh(run.mesh):
        state, start = run.begin()
        metrics = make_metrics(options, start)
        try:
            state = take_steps(run, state, start, metrics)
            held_out = run.held_out(state)
            metrics.add(options.recipe.steps, held_out=held_out)
        finally:
            metrics.close()
            if run.checkpoints is not None:
                run.checkpoints.close()
        write(run, state)
    if is_first():
        report(options, held_out, unigram_entropy(*run.valid, weights=[weight for _, weight in options.texts]))
    return held_out


def together(options: Options) -> None:
    """Run as one of many processes, none of which waits for one that is gone."""
    check_options(options)
    watch = Watch(options.out / "alive", options.together.silence)
    try:
        main(options)
    except SystemExit:  # all of them stop
        watch.done()
        raise
    except BaseException as error:
        watch.leave(error)
    watch.done()


if __name__ == "__main__":
    chosen = tyro.cli(Options, description=__doc__)
    if chosen.target is not None and chosen.depth == "compiled":
        simulate(chosen.mesh_shape)
    else:
        chosen.together.join()
    try:
        if chosen.together.processes > 1:
            together(chosen)
        else:
            main(chosen)
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
