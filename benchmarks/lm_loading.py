"""Time the loading of a model of 1 GB from Hugging Face's files against reading the file.

    python benchmarks/lm_loading.py              1 GB
    python benchmarks/lm_loading.py --small      a model of 10 MB, to try the script

The file is in the cache of the system; both sides take turns.
"""

import argparse
import functools
import math
import sys
import tempfile
import time
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import numpy as np
from config import DecoderConfig
from decoder import Decoder
from huggingface import load, save

ROUNDS = 5
LARGE = DecoderConfig(vocab=32000, layers=8, embed=1536, mlp=4096, heads=16, kv_heads=4, head_dim=96)
SMALL = DecoderConfig(vocab=1000, layers=4, embed=256, mlp=704, heads=8, kv_heads=4, head_dim=32)


def written(config: DecoderConfig, folder: Path) -> Path:
    """Write a model, and return its file."""
    save(jax.jit(functools.partial(Decoder.init, config))(key=jax.random.key(0)), folder)
    return folder / "model.safetensors"


def times(file: Path) -> None:
    """Print the time of a load against that of reading its file."""
    least = {"read": math.inf, "load": math.inf}
    spent = dict(least)
    size = file.stat().st_size
    buffer = np.empty(size, np.uint8)

    def read() -> None:
        with file.open("rb", buffering=0) as handle:
            done = 0
            while done < size:
                done += handle.readinto(memoryview(buffer)[done:])

    for _ in range(ROUNDS):
        for name, call in (("read", read), ("load", lambda: jax.block_until_ready(load(file.parent)))):
            began, processor = time.perf_counter(), time.process_time()
            call()
            least[name] = min(least[name], time.perf_counter() - began)
            spent[name] = min(spent[name], time.process_time() - processor)
    for clock, found in (("clock", least), ("processor", spent)):
        ratio = found["load"] / found["read"]
        print(
            f"{size / 1e9:.2f} GB, {clock}: read {found['read']:.2f} s, load {found['load']:.2f} s, ratio {ratio:.2f}"
        )


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small model")
    config = SMALL if parser.parse_args().small else LARGE
    print(f"jax {jax.__version__}")
    with tempfile.TemporaryDirectory() as root:
        times(written(config, Path(root)))


if __name__ == "__main__":
    main()
