"""Compile sums of a gradient for slices of TPUs that are not here, and read whether devices send parts or all of it.

    python benchmarks/scatters.py        all cases; needs libtpu, no TPU; about a minute on two cores

A weight that FSDP divides has a gradient of which each chip needs one part. A reduce-scatter sends each byte once, and
an all-reduce twice. `axn.cost` predicts which of the two a compiler makes; the table holds what it makes.
"""

import dataclasses
import os
from typing import Any

# Read when JAX and libtpu start. Nothing here runs on a TPU, and the names of one keep libtpu from asking a server.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-16", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ |= {"TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from measure import collectives, table, wire_bytes

# Recipes for v7x set it (AI-Hypercomputer/tpu-recipes). Without it, a sum over all axes of a torus is no scatter.
FLAG = {"xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true"}
# So few that no product sends its parts around while it computes.
TOKENS = 16


@dataclasses.dataclass(frozen=True)
class Case:
    """The gradient of a weight, summed over some mesh axes.

    Attributes:
        topology: a slice, as libtpu names it.
        mesh: the sizes of mesh axes, in the order of the letters x, y and z.
        shape: of the weight.
        cut: the mesh axes that divide each dimension, such as `("xy", "")`.
        is_flagged: whether to compile with `FLAG`, too. With it, libtpu 0.0.42 crashes for 4096 chips.
    """

    topology: str
    mesh: tuple[int, ...]
    shape: tuple[int, int]
    cut: tuple[str, str]
    is_flagged: bool = True

    @property
    def parts(self) -> tuple[int, int]:
        """The shape of what each chip needs."""
        sizes = dict(zip("xyz", self.mesh, strict=False))
        ways = [1, 1]
        for dimension, axes in enumerate(self.cut):
            for axis in axes:
                ways[dimension] *= sizes[axis]
        return self.shape[0] // ways[0], self.shape[1] // ways[1]

    def compile(self, flags: dict[str, str] | None) -> Any:
        """Compile the product of inputs and gradients of results, of which each chip has some rows."""
        devices = topologies.get_topology_desc(platform="tpu", topology_name=self.topology).devices
        names = tuple("xyz"[: len(self.mesh)])
        kinds = (AxisType.Auto,) * len(names)
        mesh = jax.make_mesh(self.mesh, names, kinds, devices=devices)
        rows = TOKENS * len(devices)
        given = [
            jax.ShapeDtypeStruct((rows, size), jnp.bfloat16, sharding=NamedSharding(mesh, P(names)))
            for size in self.shape
        ]
        kept = NamedSharding(mesh, P(*(tuple(axes) or None for axes in self.cut)))
        return jax.jit(lambda x, y: x.T @ y, out_shardings=kept).lower(*given).compile(flags)

    def read(self, flags: dict[str, str] | None) -> str:
        """Return the kinds of collectives, and the bytes that a chip sends as a multiple of those of a scatter."""
        whole, part = (2 * shape[0] * shape[1] for shape in (self.shape, self.parts))
        # Mesh axes that do not divide the weight sum the parts, too.
        found = [one for one in collectives(self.compile(flags)) if one.bytes >= whole]
        least = whole - part
        kinds = " + ".join(dict.fromkeys(one.kind for one in found))
        return f"{kinds}, {sum(map(wire_bytes, found)) / least:.1f}"


CASES = (
    # All chips, by the rows of a part: whole tiles of 8 rows, and less.
    Case("v5e:2x4", (8,), (128, 4096), ("x", "")),
    Case("v5e:2x4", (8,), (64, 4096), ("x", "")),
    Case("v5e:2x4", (8,), (32, 4096), ("x", "")),
    Case("v5e:16x16", (256,), (2048, 1024), ("x", "")),
    Case("v5e:16x16", (256,), (1024, 1024), ("x", "")),
    Case("v5e:16x16", (256,), (256, 1024), ("x", "")),
    Case("v6e:16x16", (256,), (2048, 1024), ("x", "")),
    Case("v6e:16x16", (256,), (512, 1024), ("x", "")),
    Case("v5p:8x8x16", (1024,), (8192, 1024), ("x", "")),
    Case("v5p:8x8x16", (1024,), (4096, 1024), ("x", "")),
    Case("v5p:8x8x16", (1024,), (2048, 1024), ("x", "")),
    Case("v5p:16x16x16", (4096,), (32768, 1024), ("x", ""), is_flagged=False),
    Case("v5p:16x16x16", (4096,), (8192, 1024), ("x", ""), is_flagged=False),
    Case("v5p:16x16x32", (8192,), (8192, 1024), ("x", "")),
    # The last dimension.
    Case("v5e:16x16", (256,), (4096, 16384), ("", "x")),
    Case("v5p:8x8x16", (1024,), (1024, 8192), ("", "x")),
    Case("v5p:8x8x16", (1024,), (1024, 2048), ("", "x")),
    # Some axes of the slice, as in FSDP beside tensor parallelism, or in groups.
    Case("v5e:16x16", (16, 16), (128, 4096), ("x", "")),
    Case("v5e:16x16", (16, 16), (64, 4096), ("x", "")),
    Case("v5p:16x16x16", (256, 16), (8192, 1024), ("x", "")),
    # Both dimensions.
    Case("v5e:2x4", (2, 4), (1024, 1024), ("x", "y")),
    Case("v5p:4x4x8", (4, 4, 8), (4096, 4096), ("xy", "z")),
    Case("v5p:16x16x16", (256, 16), (8192, 1024), ("x", "y")),
)


def main() -> None:
    """Print the table."""
    rows: list[dict[str, str]] = []
    for case in CASES:
        rows.append(
            {
                "slice": case.topology.replace(":", " "),
                "mesh": " x ".join(map(str, case.mesh)),
                "rows, columns divided by": ", ".join(axes or "-" for axes in case.cut),
                "gradient": " x ".join(map(str, case.shape)),
                "part": " x ".join(map(str, case.parts)),
                "default": case.read(None),
                "with the flag": case.read(FLAG) if case.is_flagged else "crashes",
            }
        )
    print(table(rows))


if __name__ == "__main__":
    main()
