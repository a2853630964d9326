"""Attention block by block, with a backward pass of its own, as written by hand on top of Haliax."""

import functools
import math

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from haliax.jax_utils import named_call
from haliax.nn.attention import causal_mask
from jax import lax


@named_call
def flash_attention(QPos, KPos, Key, q, k, v, *, causal=False, block_size=4):
    QPos, KPos = q.resolve_axis(hax.axis_name(QPos)), k.resolve_axis(hax.axis_name(KPos))
    if QPos.size % block_size or KPos.size % block_size:
        raise ValueError(f"{QPos} and {KPos} are no multiples of {block_size}")
    q = q * (1.0 / math.sqrt(q.axis_size(Key)))
    return _flash((q, k, v), QPos, KPos, Key, causal, block_size)


@eqx.filter_custom_vjp
def _flash(qkv, QPos, KPos, Key, causal, block_size):
    return _forward(None, qkv, QPos, KPos, Key, causal, block_size)[0]


def _scores(q_i, k_j, QPos: Axis, KPos: Axis, Key, i, j, causal, size):
    scores = hax.dot(q_i, k_j, axis=Key)
    if not causal:
        return scores
    return hax.where(causal_mask(QPos.resize(size), KPos.resize(size), i * size, j * size), scores, -1e10)


def _forward(ignore, qkv, QPos, KPos, Key, causal, block_size):
    del ignore
    q, k, v = qkv
    QBlock = QPos.resize(block_size)
    batch = hax.eliminate_axes(q.axes, (QPos, Key))
    out = hax.zeros((*batch, QPos, q.resolve_axis(Key)), dtype=v.dtype)
    total = hax.zeros((*batch, QPos), dtype=jnp.float32)

    def do_q(state):
        i, out, total = state
        q_i = q[QPos, hax.dslice.block(i, block_size)]

        def do_kv(state):
            j, o_i, sum_i, max_i = state
            k_j, v_j = (x[KPos, hax.ds(j * block_size, block_size)] for x in (k, v))
            scores = _scores(q_i, k_j, QPos, KPos, Key, i, j, causal, block_size)
            new_max = hax.maximum(max_i, hax.max(scores, axis=KPos.name))
            p = hax.exp(scores - new_max)
            shrink = hax.exp(max_i - new_max)
            sum_i = shrink * sum_i + hax.sum(p, axis=KPos.name)
            return j + 1, shrink * o_i + hax.dot(p, v_j, axis=KPos.name), sum_i, new_max

        start = (hax.zeros(q_i.axes, v.dtype), hax.zeros((*batch, QBlock)), hax.full((*batch, QBlock), -jnp.inf))
        end = i + 1 if causal else KPos.size // block_size
        _, o_i, sum_i, max_i = lax.while_loop(lambda state: state[0] < end, do_kv, (0, *start))
        out = out.updated_slice({QPos: i * block_size}, o_i / sum_i)
        return i + 1, out, total.updated_slice({QPos.name: i * block_size}, max_i + hax.log(sum_i))

    _, out, total = lax.while_loop(lambda state: state[0] < QPos.size // block_size, do_q, (0, out, total))
    return out, (out, total)


def _backward(residuals, d_out, ignore, qkv, QPos, KPos, Key, causal, block_size):
    del ignore
    (out, total), (q, k, v) = residuals, qkv
    delta = hax.dot(d_out, out, axis=Key)

    def do_kv(j, state):
        d_q, d_k, d_v = state
        k_j, v_j = (x[KPos, hax.dblock(j, block_size)] for x in (k, v))

        def do_q(state):
            i, d_q, d_k_j, d_v_j = state
            block = hax.dblock(i, block_size)
            q_i, d_o_i, total_i, delta_i, d_q_i = (x[QPos, block] for x in (q, d_out, total, delta, d_q))
            p = hax.exp(_scores(q_i, k_j, QPos, KPos, Key, i, j, causal, block_size) - total_i)
            d_s = (p * (hax.dot(d_o_i, v_j, axis=Key) - delta_i)).astype(d_q.dtype)
            d_v_j = d_v_j + hax.dot(p, d_o_i, axis=QPos.name).rearrange(d_v_j.axes)
            d_k_j = d_k_j + hax.dot(d_s, q_i, axis=QPos.name).rearrange(d_k_j.axes)
            d_q = d_q.updated_slice({QPos: i * block_size}, d_q_i + hax.dot(d_s, k_j, axis=KPos.name))
            return i + 1, d_q, d_k_j, d_v_j

        start = (j if causal else jnp.zeros_like(j), d_q, hax.zeros_like(k_j), hax.zeros_like(v_j))
        _, d_q, d_k_j, d_v_j = lax.while_loop(lambda state: state[0] < QPos.size // block_size, do_q, start)
        put = {KPos: j * block_size}
        return d_q, d_k.updated_slice(put, d_k_j), d_v.updated_slice(put, d_v_j)

    zeros: tuple[NamedArray, ...] = tuple(hax.zeros_like(x) for x in (q, k, v))
    return lax.fori_loop(0, KPos.size // block_size, do_kv, zeros)


_flash.def_fwd(functools.partial(_forward))
_flash.def_bwd(_backward)
