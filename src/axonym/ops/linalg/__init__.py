"""Linear algebra over named axes: `axn.linalg`.

A matrix over the axes (row, column) maps vectors over `column` to vectors over `row`; `solving` says more about it. All
other axes are batch axes.
"""

from ..contract import outer as outer  # NumPy has it here too
from .factors import (
    cholesky as cholesky,
    eig as eig,
    eigh as eigh,
    eigvals as eigvals,
    eigvalsh as eigvalsh,
    qr as qr,
    svd as svd,
    svdvals as svdvals,
)
from .norms import (
    cond as cond,
    matrix_norm as matrix_norm,
    norm as norm,
    vector_norm as vector_norm,
)
from .solving import (
    cho_solve as cho_solve,
    cross as cross,
    det as det,
    expm as expm,
    inv as inv,
    lstsq as lstsq,
    matrix_power as matrix_power,
    matrix_rank as matrix_rank,
    pinv as pinv,
    slogdet as slogdet,
    solve as solve,
    solve_triangular as solve_triangular,
    vdot as vdot,
    vecdot as vecdot,
)

__all__ = [
    "cho_solve",
    "cholesky",
    "cond",
    "cross",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "vdot",
    "vecdot",
    "vector_norm",
]
