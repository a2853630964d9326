"""Time and memory of loading a model of 1 GB from Hugging Face's files, against reading the file.

    python benchmarks/lm_loading.py              1 GB
    python benchmarks/lm_loading.py --small      a model of 10 MB, to try the script

The bars are 1.3 of the time of reading, and 1.3 of its memory. The file is in the cache of the system; both sides take
turns. Reading is `np.fromfile`: all bytes, to new memory, as a load needs it, too. A model whose linear layers have
their inputs first, which files do not, shows what a transpose costs.

Memory is measured twice, in processes of their own. The table has the peak of all that a process has in memory, pages
of mapped files included (`VmHWM`), less what it had before. The line below is of a load onto 8 devices under a mapping:
the most that the process had of its own (`RssAnon`, looked at each millisecond), less what it had before, less the
bytes that the devices hold, which on a CPU are its memory, too.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import numpy as np
from measure import interleaved, median_ratio, ratio_of_minima, table

import axonym as axn
from axonym import state_dict as sd
from axonym.models import Decoder, DecoderConfig, load, save
from axonym.models.huggingface import LLAMA

ROUNDS = 9
LARGE = DecoderConfig(vocab=32000, layers=8, embed=1536, mlp=4096, heads=16, kv_heads=4, head_dim=96)
SMALL = DecoderConfig(vocab=1000, layers=4, embed=256, mlp=704, heads=8, kv_heads=4, head_dim=32)
MAPPING = {"embed": "data", "kv_heads": "model", "mlp": "model"}


def written(config: DecoderConfig, folder: Path) -> Path:
    """Write a model, and return its file."""
    save(jax.jit(functools.partial(Decoder.init, config))(key=jax.random.key(0)), folder)
    return folder / "model.safetensors"


def transposed(config: DecoderConfig, file: Path) -> Decoder:
    """Load a model whose linear layers have the axes of inputs first."""
    template = jax.eval_shape(functools.partial(Decoder.init, config), key=jax.random.key(0))
    return sd.from_torch_compatible_state_dict(template, sd.load_state_dict(file), rename=LLAMA)


def times(config: DecoderConfig, file: Path) -> list[dict[str, str]]:
    """Time loads against reading the file."""
    began = time.perf_counter()
    jax.block_until_ready(load(file.parent))
    first = time.perf_counter() - began
    candidates = {
        "read": lambda: np.fromfile(file, np.uint8),
        "load": lambda: load(file.parent),
        "load, transposed": lambda: transposed(config, file),
    }
    timed = interleaved(candidates, rounds=ROUNDS, calls=1)
    rows = []
    for name, timing in timed.items():
        rows.append(
            {
                "what": name,
                "seconds (best)": f"{timing.minimum:.3f}",
                "ratio of the best": f"{ratio_of_minima(timing, timed['read']):.2f}",
                "median ratio": f"{median_ratio(timing, timed['read']):.2f}",
            }
        )
    print(f"the first load of the process, with what it traces: {first:.2f} s")
    return rows


def own_bytes(kind: str = "RssAnon") -> int:
    """Return the memory of this process, by default without that of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not tell the memory of a process")


def print_peak(folder: Path, small: Path, what: str) -> None:
    """Load or read, and print how far the peak of the process is above what it had before."""
    load(small)
    before = own_bytes("VmRSS")
    kept: object = np.fromfile(folder / "model.safetensors", np.uint8) if what == "read" else load(folder)
    jax.block_until_ready(kept)
    print(own_bytes("VmHWM") - before)


def peaks(folder: Path, small: Path) -> list[dict[str, str]]:
    """Compare the peaks of processes that load and read."""
    size = (folder / "model.safetensors").stat().st_size
    command = [sys.executable, __file__, "--memory", str(folder), str(small), "--peak"]
    found = {what: int(subprocess.check_output([*command, what])) for what in ("read", "load")}
    return [
        {"what": what, "peak, MB": f"{peak / 1e6:.0f}", "of the file": f"{peak / size:.2f}"}
        | {"of reading": f"{peak / found['read']:.2f}"}
        for what, peak in found.items()
    ]


def measure_memory(folder: Path, small: Path) -> None:
    """Load on 8 devices, and print how much memory that took, in arrays of the largest size."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    # A small model before, so that only the arrays count.
    load(small, mapping=MAPPING, mesh=mesh)
    before, most, done = own_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = jax.block_until_ready(load(folder, mapping=MAPPING, mesh=mesh))
    done.set()
    watcher.join()
    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(model):
        for shard in leaf.addressable_shards:
            held[shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(model))
    beyond = most - before - sum(held.values())
    print(
        f"8 devices hold {sum(held.values()) / 1e6:.0f} MB, the largest array has {largest / 1e6:.0f} MB; "
        f"the load took {beyond / 1e6:.0f} MB beyond that, {max(0, beyond) / largest:.2f} times the largest"
    )


def main() -> None:
    """Print times and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small model")
    parser.add_argument("--memory", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peak", choices=("read", "load"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak is not None:
        print_peak(*options.memory, options.peak)
        return
    if options.memory is not None:
        measure_memory(*options.memory)
        return
    config = SMALL if options.small else LARGE
    print(f"jax {jax.__version__}, axonym {axn.__version__}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as root:
        file = written(config, Path(root) / "model")
        print(table(times(config, file)))
        written(SMALL, Path(root) / "small")
        print(table(peaks(file.parent, Path(root) / "small")))
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
        command = [sys.executable, __file__, "--memory", str(file.parent), str(Path(root) / "small")]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        print(subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout.strip())


if __name__ == "__main__":
    main()
