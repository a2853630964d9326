"""Rows of several texts, mixed by weights: Grain says which text each row comes from, and keeps the position."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rows import Rows

ENDLESS = 2**60  # rows: texts begin anew


class Source:
    """The rows of a text one by one, as Grain reads them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, at: int) -> list[NDArray[np.generic]]:
        return [array[0] for array in self._rows.rows(at, 1, np.zeros(1, int))]


class Mixture:
    """Rows of several texts, in shares by weights.

    Each row follows from its number alone, so that processes may draw any of them, and a position is one number. It is
    the state of an iterator over `dataset`.

    Args:
        sources: of the rows of each text.
        weights: of the texts, in the same order.

    Attributes:
        dataset: of Grain, with all rows in order.

    Raises:
        ValueError: if Grain is not installed.
    """

    def __init__(self, sources: Sequence[Rows], weights: Sequence[float]) -> None:
        try:
            import grain
        except ModuleNotFoundError as error:
            if error.name != "grain":
                raise
            raise ValueError("mix needs the package grain: pip install grain") from None
        parts = [grain.MapDataset.source(Source(source)) for source in sources]
        self.dataset: Any = grain.MapDataset.mix(parts, list(weights))
        self._first = 0

    def rows(self, step: int, batch: int, chosen: NDArray[np.integer]) -> list[NDArray[np.generic]]:
        """Return some rows of the batch of a step."""
        rows = [self.dataset[self._first + step * batch + at] for at in chosen.tolist()]
        return [np.stack(arrays) for arrays in zip(*rows, strict=True)]

    def state(self, step: int, batch: int) -> dict[str, int]:
        """Return the state of Grain's iterator before a step."""
        return {"next_index": self._first + step * batch}

    def go_on(self, state: dict[str, int], step: int, batch: int) -> None:
        """Let a step begin with the row of a state, also where batches had another size."""
        self._first = state["next_index"] - step * batch
