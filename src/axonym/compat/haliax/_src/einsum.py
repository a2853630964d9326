"""Alias of `haliax.einsum`."""

from .._contract import einsum

__all__ = ["einsum"]
