"""NumPyro and BlackJAX beside themselves on plain arrays, with the same keys."""

from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import axonym as axn

Feature, Obs = axn.make_axes(feature=3, obs=12)
X = jax.random.normal(jax.random.key(0), (12, 3))
Y = X @ jnp.array([1.0, -2.0, 0.5])
NAMED_X, NAMED_Y = axn.named(X, (Obs, Feature)), axn.named(Y, Obs)


def by_name(weight: axn.NamedArray) -> jax.Array:
    residuals = NAMED_Y - NAMED_X.dot(weight, axis="feature")
    return (-50 * (residuals**2).sum() - (weight**2).sum() / 2).scalar()


def by_position(weight: jax.Array) -> jax.Array:
    return -50 * jnp.sum((Y - X @ weight) ** 2) - jnp.sum(weight**2) / 2


SAMPLERS: dict[str, Callable[..., Any]] = {
    "hmc": lambda density: blackjax.hmc(density, 1e-2, jnp.ones(3), 5),
    "nuts": lambda density: blackjax.nuts(density, 1e-2, jnp.ones(3)),
    "mala": lambda density: blackjax.mala(density, 1e-3),
    "random walk": lambda density: blackjax.additive_step_random_walk(
        density, blackjax.mcmc.random_walk.normal(jnp.full(3, 0.01))
    ),
    "elliptical slice": lambda density: blackjax.elliptical_slice(density, mean=jnp.zeros(3), cov=jnp.eye(3)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_blackjax(name: str) -> None:
    sampler = SAMPLERS[name]
    starts = {"named": axn.zeros(Feature), "dict": {"weight": axn.zeros(Feature)}, "plain": jnp.zeros(3)}
    densities = {"named": by_name, "dict": lambda tree: by_name(tree["weight"]), "plain": by_position}

    @jax.jit
    def run(key: jax.Array) -> dict[str, Any]:
        ends = {}
        for kind, density in densities.items():
            algorithm = sampler(density)
            state = algorithm.init(starts[kind])
            for own in jax.random.split(key, 3):
                state, _ = algorithm.step(own, state)
            ends[kind] = state.position
        return ends

    ends = run(jax.random.key(1))
    assert ends["named"].names == ("feature",)
    assert np.abs(ends["plain"]).max() > 1e-3
    for x in (ends["named"], ends["dict"]["weight"]):
        np.testing.assert_allclose(x.array, ends["plain"], rtol=1e-4, atol=1e-5)


def test_a_kernel_of_numpyro_on_named_positions() -> None:
    draws = []
    for potential, start in (
        (lambda weight: -by_name(weight), axn.zeros(Feature)),
        (lambda weight: -by_position(weight), jnp.zeros(3)),
    ):
        chain = MCMC(NUTS(potential_fn=potential), num_warmup=20, num_samples=20, progress_bar=False)
        chain.run(jax.random.key(0), init_params=start)
        draws.append(chain.get_samples())
    named, plain = draws
    assert named.tag("draw").shape == {"draw": 20, "feature": 3}
    np.testing.assert_allclose(named.array, plain, rtol=1e-2, atol=1e-3)


def test_chains_start_side_by_side() -> None:
    starts = jax.random.normal(jax.random.key(5), (2, 3))
    kernel = NUTS(potential_fn=lambda tree: -by_name(tree["weight"]))
    chain = MCMC(kernel, num_warmup=5, num_samples=4, num_chains=2, chain_method="vectorized", progress_bar=False)
    chain.run(jax.random.key(0), init_params={"weight": axn.named(starts, ("chain", Feature)).untag("chain")})
    draws = chain.get_samples(group_by_chain=True)["weight"]
    assert draws.tag("chain", "draw").shape == {"chain": 2, "draw": 4, "feature": 3}


def test_distributions_are_applied_by_name() -> None:
    key = jax.random.key(3)
    value = jax.random.normal(key, (2, 4))
    mean, scale = jnp.arange(4.0), jnp.array([1.0, 2.0])
    named = axn.nmap(lambda x, mean, scale: dist.Normal(mean, scale).log_prob(x))(
        axn.named(value, ("kind", "group")), axn.named(mean, "group"), axn.named(scale, "kind")
    )
    expected = dist.Normal(mean, scale[:, None]).log_prob(value)
    np.testing.assert_allclose(named.rearrange(("kind", "group")).array, expected, rtol=1e-5)

    logits = axn.named(value, ("kind", "vocab"))
    named = axn.nmap(lambda p: dist.Categorical(logits=p).log_prob(1))(logits.untag("vocab"))
    assert named.names == ("kind",)
    np.testing.assert_allclose(named.array, dist.Categorical(logits=value).log_prob(1), rtol=1e-5)

    keys = jax.random.split(key, 4)
    draws = axn.nmap(lambda key, mean: dist.Gamma(mean + 1).sample(key))(
        axn.named(keys, "group"), axn.named(mean, "group")
    )
    expected = [dist.Gamma(each + 1).sample(own) for own, each in zip(keys, mean, strict=True)]
    np.testing.assert_allclose(draws.array, jnp.stack(expected), rtol=1e-5)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: dist.Normal(x, 1.0),
        lambda x: dist.HalfNormal(x),
        lambda x: dist.Categorical(logits=x),
        lambda x: dist.Dirichlet(x),
        lambda x: dist.Delta(x),
        lambda x: numpyro.factor("x", x),
    ],
    ids=["Normal", "HalfNormal", "Categorical", "Dirichlet", "Delta", "factor"],
)
def test_a_named_parameter_is_an_error_that_says_what_works(use: Callable[[Any], object]) -> None:
    with numpyro.handlers.seed(rng_seed=0), pytest.raises((axn.errors.AxisError, KeyError)) as error:
        use(axn.ones(Feature))
    text = "functions of other libraries take x.array, and axn.nmap(f)(x) applies f by name"
    assert str(error.value).endswith(text)
