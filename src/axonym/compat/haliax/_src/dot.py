"""Alias of `haliax.dot`."""

from .._contract import dot

__all__ = ["dot"]
