"""Parametrisations that scale layers with their width."""

import abc
import dataclasses
import math

from axonym import AxisSpec
from axonym.engine import spec

__all__ = [
    "AbstractEmbeddingReparam",
    "AbstractLinearReparam",
    "AbstractReparam",
    "EmbeddingMup",
    "EmbeddingStandardParam",
    "HiddenLinearMup",
    "InputLinearMup",
    "LinearStandardParam",
    "OutputLinearMup",
    "ReparamEnabled",
]


def _size(axes: AxisSpec) -> int:
    return math.prod(axis.size for axis in spec(axes))


class AbstractReparam(abc.ABC):
    """The scales of the initial weights, the output and the learning rate of a layer, by its axes."""

    @staticmethod
    @abc.abstractmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return the factor for initial weights."""

    @property
    @abc.abstractmethod
    def active_scale(self) -> float:
        """The factor for the weight at each use."""

    @property
    @abc.abstractmethod
    def lr_scale(self) -> float:
        """The factor for the learning rate."""


@dataclasses.dataclass
class AbstractLinearReparam(AbstractReparam):
    """The scales of a `Linear`.

    Attributes:
        In: the axes that it sums over.
        Out: the axes of its output.
    """

    In: AxisSpec
    Out: AxisSpec


@dataclasses.dataclass
class AbstractEmbeddingReparam(AbstractReparam):
    """The scales of an `Embedding`.

    Attributes:
        Embed: the axes of a vector.
        Vocab: the axis of their numbers.
    """

    Embed: AxisSpec
    Vocab: AxisSpec

    @property
    @abc.abstractmethod
    def unembed_active_scale(self) -> float:
        """The factor for the table in `unembed`."""


class _Unscaled:
    """The default scales, which are one."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return one."""
        return 1

    @property
    def active_scale(self) -> float:
        """One."""
        return 1

    @property
    def lr_scale(self) -> float:
        """One."""
        return 1


class LinearStandardParam(_Unscaled, AbstractLinearReparam):
    """Initial weights scale with one over the square root of the fan-in."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return one over the square root of the size of `In`."""
        return 1 / math.sqrt(_size(In))


class InputLinearMup(_Unscaled, AbstractLinearReparam):
    """All scales are one, as the input is never wide."""


class HiddenLinearMup(_Unscaled, AbstractLinearReparam):
    """Initial weights scale with one over the root of the fan-in, and the learning rate with one over the fan-in."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return one over the square root of the size of `In`."""
        return 1 / math.sqrt(_size(In))

    @property
    def lr_scale(self) -> float:
        """One over the size of `In`."""
        return 1 / _size(self.In)


class OutputLinearMup(_Unscaled, AbstractLinearReparam):
    """The output scales with one over the fan-in."""

    @property
    def active_scale(self) -> float:
        """One over the size of `In`."""
        return 1 / _size(self.In)


class EmbeddingStandardParam(_Unscaled, AbstractEmbeddingReparam):
    """Initial weights scale with one over the size of a vector."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return one over the size of `Out`, the axes of a vector."""
        return 1 / _size(Out)

    @property
    def unembed_active_scale(self) -> float:
        """One."""
        return 1


class EmbeddingMup(_Unscaled, AbstractEmbeddingReparam):
    """Scores over the vocabulary scale with one over the size of a vector."""

    @property
    def unembed_active_scale(self) -> float:
        """One over the size of `Embed`."""
        return 1 / _size(self.Embed)


class ReparamEnabled(abc.ABC):
    """A base class for layers that have a parametrisation."""

    @property
    @abc.abstractmethod
    def reparam(self) -> AbstractReparam:
        """The parametrisation."""
