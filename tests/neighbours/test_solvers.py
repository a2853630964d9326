"""Lineax, Optimistix and Diffrax with named states: each run beside the same one on plain arrays."""

from collections.abc import Callable
from typing import Any, TypeAlias

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optax
import optimistix
import pytest

import axonym as axn

Tree: TypeAlias = Any
Solve: TypeAlias = Callable[[Tree], Tree]


class State(eqx.Module):
    """A module as a state."""

    u: axn.NamedArray
    v: axn.NamedArray


U = jnp.linspace(0.2, 1.5, 8).reshape(4, 2)
V = jnp.linspace(-1.0, 0.5, 4)
PLAIN: dict[str, Tree] = {"bare": U, "dict": {"u": U, "v": V}, "module": {"u": U, "v": V}}
PARTS = {"u": axn.named(U, ("a", "b")), "v": axn.named(V, "a")}
NAMED: dict[str, Tree] = {"bare": PARTS["u"], "dict": PARTS, "module": State(**PARTS)}


# The problems: each element is coupled with those along the last axis of its array.
def by_array(named: Callable[[axn.NamedArray], axn.NamedArray], plain: Callable[[jax.Array], jax.Array]) -> Solve:
    def each(x: Tree) -> Tree:
        return named(x) if axn.is_named_array(x) else plain(x)

    return lambda tree: jax.tree.map(each, tree, is_leaf=axn.is_named_array)


def along(x: axn.NamedArray) -> axn.NamedArray:
    return 0.1 * x.sum(x.names[-1])


def along_last(x: jax.Array) -> jax.Array:
    return 0.1 * x.sum(-1, keepdims=True)


multiply = by_array(lambda x: 3 * x + along(x), lambda x: 3 * x + along_last(x))
residual = by_array(lambda x: axn.tanh(x) + x + along(x) - 1, lambda x: jnp.tanh(x) + x + along_last(x) - 1)
contract = by_array(lambda x: 0.3 * axn.cos(x) + along(x), lambda x: 0.3 * jnp.cos(x) + along_last(x))
decay = by_array(lambda x: -axn.tanh(x) - along(x), lambda x: -jnp.tanh(x) - along_last(x))


def loss(y: Tree, args: object) -> jax.Array:
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(residual(y)))


def drift(t: Any, y: Tree, args: object) -> Tree:
    return jax.tree.map(lambda x: (1 + t) * x, decay(y))


# The solvers: each row solves a problem for a state, and returns a tree like it.
def linear(solver: lineax.AbstractLinearSolver, prepare: Callable[[Any], Any] = lambda operator: operator) -> Solve:
    def solve(b: Tree) -> Tree:
        tags = lineax.positive_semidefinite_tag if type(solver) in (lineax.CG, lineax.Cholesky) else ()
        operator = lineax.FunctionLinearOperator(multiply, jax.eval_shape(lambda: b), tags)
        return lineax.linear_solve(prepare(operator), b, solver).value

    return solve


def as_jacobian(operator: lineax.FunctionLinearOperator) -> lineax.JacobianLinearOperator:
    at = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), operator.in_structure())
    return lineax.JacobianLinearOperator(lambda y, args: multiply(y), at)


def iterated(find: Callable[..., optimistix.Solution], fn: Callable[..., Any], solver: Any) -> Solve:
    return lambda y: find(fn, solver, y, max_steps=2000).value


def root(solver: Any) -> Solve:
    return iterated(optimistix.root_find, lambda y, args: residual(y), solver)


def fit(solver: Any) -> Solve:
    return iterated(optimistix.least_squares, lambda y, args: residual(y), solver)


def minimum(solver: Any) -> Solve:
    return iterated(optimistix.minimise, loss, solver)


def evolved(solver: Any, noise: Any = None, **options: Any) -> Solve:
    def solve(y: Tree) -> Tree:
        terms: Any = diffrax.ODETerm(drift)
        if noise:
            diffusion = diffrax.ControlTerm(_diffusion, noise(jax.eval_shape(lambda: y)))
            terms = diffrax.MultiTerm(terms, diffusion)
        found = diffrax.diffeqsolve(terms, solver, 0.0, 1.0, 0.1, y, **options).ys
        return jax.tree.map(lambda leaf: leaf[0], found)  # there is one time

    return solve


def _diffusion(t: Any, y: Tree, args: object) -> lineax.DiagonalLinearOperator:
    return lineax.DiagonalLinearOperator(jax.tree.map(lambda x: 0.3 * x, y))


def tree_of_brownian_motion(structure: Tree) -> diffrax.VirtualBrownianTree:
    return diffrax.VirtualBrownianTree(0.0, 1.0, 1e-2, structure, jax.random.key(0))


def path_of_brownian_motion(structure: Tree) -> diffrax.UnsafeBrownianPath:
    return diffrax.UnsafeBrownianPath(structure, jax.random.key(0))


def gradient(solve: Solve) -> Solve:
    def total(y: Tree) -> jax.Array:
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(solve(y)))

    return jax.grad(total)


def tangent(solve: Solve) -> Solve:
    return lambda y: jax.jvp(solve, (y,), (jax.tree.map(jnp.ones_like, y),))[1]


def shifted_root(shift: Tree) -> Tree:
    def fn(y: Tree, args: Tree) -> Tree:
        return jax.tree.map(jnp.subtract, residual(y), args)

    return optimistix.root_find(fn, optimistix.Newton(**CLOSE), jax.tree.map(jnp.zeros_like, shift), shift).value


CLOSE = {"rtol": 1e-5, "atol": 1e-5}
ADAPTIVE = {"stepsize_controller": diffrax.PIDController(**CLOSE)}
ROWS: dict[str, Solve] = {
    "CG": linear(lineax.CG(**CLOSE)),
    "NormalCG": linear(lineax.Normal(lineax.CG(**CLOSE))),
    "GMRES": linear(lineax.GMRES(**CLOSE)),
    "BiCGStab": linear(lineax.BiCGStab(**CLOSE)),
    "LSMR": linear(lineax.LSMR(**CLOSE)),
    "LU": linear(lineax.LU()),
    "QR": linear(lineax.QR()),
    "SVD": linear(lineax.SVD()),
    "Cholesky": linear(lineax.Cholesky()),
    "LU, materialised": linear(lineax.LU(), lineax.materialise),
    "LU, linearised": linear(lineax.LU(), lineax.linearise),
    "QR, Jacobian": linear(lineax.QR(), as_jacobian),
    "Newton": root(optimistix.Newton(**CLOSE)),
    "Newton, GMRES": root(optimistix.Newton(**CLOSE, linear_solver=lineax.GMRES(**CLOSE))),
    "Chord": root(optimistix.Chord(**CLOSE)),
    "Dogleg": root(optimistix.Dogleg(**CLOSE)),
    "GaussNewton": fit(optimistix.GaussNewton(**CLOSE)),
    "LevenbergMarquardt": fit(optimistix.LevenbergMarquardt(**CLOSE)),
    "IndirectLevenbergMarquardt": fit(optimistix.IndirectLevenbergMarquardt(**CLOSE)),
    "BFGS": minimum(optimistix.BFGS(**CLOSE)),
    "LBFGS": minimum(optimistix.LBFGS(**CLOSE)),
    "DFP": minimum(optimistix.DFP(**CLOSE)),
    "NonlinearCG": minimum(optimistix.NonlinearCG(**CLOSE)),
    "NelderMead": minimum(optimistix.NelderMead(1e-3, 1e-3)),
    "GradientDescent": minimum(optimistix.GradientDescent(0.1, **CLOSE)),
    "adam": minimum(optimistix.OptaxMinimiser(optax.adam(0.1), **CLOSE)),
    "FixedPointIteration": iterated(
        optimistix.fixed_point, lambda y, args: contract(y), optimistix.FixedPointIteration(**CLOSE)
    ),
    "Euler": evolved(diffrax.Euler()),
    "Heun": evolved(diffrax.Heun()),
    "Tsit5": evolved(diffrax.Tsit5(), **ADAPTIVE),
    "Dopri5": evolved(diffrax.Dopri5(), **ADAPTIVE),
    "Kvaerno3": evolved(diffrax.Kvaerno3(), **ADAPTIVE),
    "Kvaerno5": evolved(diffrax.Kvaerno5(), **ADAPTIVE),
    "ImplicitEuler": evolved(diffrax.ImplicitEuler(optimistix.Newton(**CLOSE))),
    "Euler, tree": evolved(diffrax.Euler(), tree_of_brownian_motion),
    "EulerHeun, tree": evolved(diffrax.EulerHeun(), tree_of_brownian_motion),
    "StratonovichMilstein, tree": evolved(diffrax.StratonovichMilstein(), tree_of_brownian_motion),
    "Euler, path": evolved(diffrax.Euler(), path_of_brownian_motion, adjoint=diffrax.DirectAdjoint()),
    "gradient, CG": gradient(linear(lineax.CG(**CLOSE))),
    "gradient, Newton": gradient(shifted_root),
    "gradient, checkpoints": gradient(evolved(diffrax.Tsit5())),
    "gradient, backwards": gradient(evolved(diffrax.Tsit5(), adjoint=diffrax.BacksolveAdjoint())),
    "gradient, direct": gradient(evolved(diffrax.Tsit5(), adjoint=diffrax.DirectAdjoint())),
    "tangent": tangent(evolved(diffrax.Tsit5(), adjoint=diffrax.ForwardMode())),
}


def on_mesh(solve: Solve, mesh: jax.sharding.Mesh, kind: str) -> tuple[Tree, Tree]:
    """Solve for a state that is sharded; the types of an Explicit mesh are not for these libraries."""
    with axn.set_mesh(mesh):
        state = axn.shard(NAMED[kind], {"a": "data"})
        if mesh.axis_types[0] is jax.sharding.AxisType.Explicit:
            solve = jax.sharding.auto_axes(solve, out_sharding=jax.tree.map(lambda leaf: leaf.sharding, state))
        return state, jax.jit(solve)(state)


@pytest.mark.sampled
@pytest.mark.parametrize("row", ROWS)
def test_a_run_gives_the_numbers_of_plain_arrays(
    row: str, auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh
) -> None:
    solve = ROWS[row]
    references = {kind: jax.tree.leaves(jax.jit(solve)(PLAIN[kind])) for kind in ("bare", "dict")}
    for kind, mesh in (
        ("bare", auto_mesh),
        ("dict", auto_mesh),
        ("bare", explicit_mesh),
        ("module", explicit_mesh),
    ):
        state, found = on_mesh(solve, mesh, kind)
        assert jax.tree.structure(found) == jax.tree.structure(state)
        expected = references["bare" if kind == "bare" else "dict"]
        for part, reference in zip(jax.tree.leaves(found), expected, strict=True):
            np.testing.assert_allclose(part, reference, rtol=2e-4, atol=2e-4)
        if mesh is explicit_mesh:
            assert [leaf.sharding for leaf in jax.tree.leaves(found)] == [
                leaf.sharding for leaf in jax.tree.leaves(state)
            ]


def test_solutions_are_those_of_numpy() -> None:
    matrix = 3 * np.eye(2) + 0.1
    found = ROWS["GMRES"](NAMED["bare"])
    assert found.names == ("a", "b")
    np.testing.assert_allclose(found.array, np.linalg.solve(matrix, np.asarray(U).T).T, rtol=1e-5)
    np.testing.assert_allclose(residual(ROWS["Newton"](NAMED["bare"])).array, 0, atol=1e-5)
    np.testing.assert_allclose(ROWS["BFGS"](NAMED["bare"]).array, ROWS["Newton"](U), atol=1e-3)


def test_a_state_may_change_from_one_run_to_the_next() -> None:
    # What is compiled for one is looked up by its static fields, the structure of the Brownian motion among them.
    solve = eqx.filter_jit(ROWS["Euler, tree"])
    for kind in ("bare", "dict", "bare", "module", "dict"):
        for part, reference in zip(
            jax.tree.leaves(solve(NAMED[kind])), jax.tree.leaves(solve(PLAIN[kind])), strict=True
        ):
            np.testing.assert_allclose(part, reference, rtol=1e-5)


def test_solvers_of_one_number_take_it_without_names() -> None:
    def cube(y: jax.Array, args: object) -> jax.Array:
        return (axn.named(y, ()) ** 3 - 0.5).scalar()

    bounds = {"lower": jnp.float32(0), "upper": jnp.float32(1)}
    found = optimistix.root_find(cube, optimistix.Bisection(1e-5, 1e-5), jnp.float32(0.5), options=bounds)
    np.testing.assert_allclose(found.value, 0.5 ** (1 / 3), rtol=1e-4)
    with pytest.raises(ValueError, match="scalar input"):
        optimistix.root_find(
            lambda y, args: y**3 - 0.5, optimistix.Bisection(1e-5, 1e-5), axn.named(0.5, ()), options=bounds
        )


def test_axes_in_another_order_are_another_structure() -> None:
    def turned(x: axn.NamedArray) -> axn.NamedArray:
        return x.rearrange(("b", "a"))

    operator = lineax.FunctionLinearOperator(turned, jax.eval_shape(lambda: PARTS["u"]))
    assert (operator.in_structure() == operator.out_structure()) is False
    with pytest.raises(ValueError, match="structure"):
        lineax.linear_solve(operator, PARTS["u"], lineax.BiCGStab(**CLOSE))


def test_types_with_shardings_are_for_auto_axes(explicit_mesh: jax.sharding.Mesh) -> None:
    # With plain arrays as well: once a release of Lineax knows such types, the page has a limit less.
    with axn.set_mesh(explicit_mesh):
        state = axn.shard(PARTS["u"], {"a": "data"})
        for b in (state, state.array):
            with pytest.raises(ValueError, match="different dynamic arguments"):
                ROWS["CG"](b)
