"""Where numbers of a step first stopped being finite."""

import jax
from rows import Batch
from trainer import Trainer

import axonym as axn
from axonym.models import Decoder


def first_fault(trainer: Trainer, model: Decoder, batch: Batch, key: jax.Array) -> str:
    """Say which operation of a step was the first whose result is not finite, in the microbatch where that was.

    Args:
        trainer: takes the step.
        model: before the step.
        batch: of the step.
        key: of the step.
    """
    count = batch.tokens.axis_size("microbatch")
    for i, own in enumerate(jax.random.split(key, count)):
        fault = axn.debug.locate(trainer.loss, model, batch.part(i), own)
        if fault is not None:
            text = str(fault).removeprefix("locate: ").replace("\n  ", "; ")
            return f"microbatch {i}: {text}"
    return "nothing, when the step is taken again"
