"""Compile an update by Muon for eight devices, where parameters are stored and spread over devices by layers.

python benchmarks/muon.py --target v5e

Prints for each mapping what a device sends and computes in an update, and its memory beside parameters, gradients and
momentum. Nothing runs.
"""

import argparse
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 8)

import equinox as eqx  # noqa: E402
import optax  # noqa: E402
from measure import table  # noqa: E402

import axonym as axn  # noqa: E402
from axonym import nn  # noqa: E402

Layers, Embed, Heads, HeadDim, Mlp = axn.make_axes(layers=24, embed=1024, heads=16, head_dim=64, mlp=4096)
LAYERS = {"layers": ("data", "model")}
MAPPINGS = {
    "FSDP": {"embed": ("data", "model")},
    "FSDP and tensor parallel": {"embed": "data", "heads": "model", "mlp": "model"},
}


def row(target: str, stored: dict[str, str | tuple[str, str]], *, is_spread: bool) -> dict[str, object]:
    """Describe the update by one mapping."""
    tx = axn.optim.muon(0.02)
    tx = axn.optim.spread(tx, LAYERS) if is_spread else tx

    def init() -> dict[str, Any]:
        blocks = nn.Stacked.init(Layers, nn.TransformerBlock)
        model = blocks(Embed, Heads, HeadDim, Mlp, key=jax.random.key(0))
        return {"model": model, "optimizer": tx.init(model)}

    def update(state: dict[str, Any], gradients: nn.Stacked) -> dict[str, Any]:
        updates, moments = tx.update(gradients, state["optimizer"], state["model"])
        return {"model": optax.apply_updates(state["model"], updates), "optimizer": moments}

    mappings = axn.Mappings(stored, {}, {"optimizer": LAYERS} if is_spread else {})
    state = eqx.filter_eval_shape(init)
    step = axn.named_jit(update, donate_args=(True, True))
    report = axn.cost(step, mappings, {"data": 4, "model": 2}, state, state["model"], target=target)
    work = [own for own in report.work if own.layer == "optimizer"]
    kinds = {own.kind: 0 for own in report.communication}
    for own in report.communication:
        kinds[own.kind] += own.count
    return {
        "update": "spread" if is_spread else "where parameters are",
        "sent": f"{sum(own.sent for own in report.communication) / 1e6:.0f} MB",
        "collectives": ", ".join(f"{kind} x{count}" for kind, count in kinds.items()),
        "operations": f"{sum(own.flops for own in work) / 1e12:.3f} T",
        "temporaries": f"{report.memory.temporary / 1e6:.0f} MB",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu", help="a device of axn.partitioning.TARGETS")
    target = parser.parse_args().target
    for name, stored in MAPPINGS.items():
        print(name)
        print(table([row(target, stored, is_spread=is_spread) for is_spread in (False, True)]))


if __name__ == "__main__":
    main()
