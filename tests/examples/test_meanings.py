"""The models of the gallery are what the table says that their axes mean."""

import pytest

from tests.testing.meanings import GALLERY
from tests.testing.test_meanings import check


@pytest.mark.parametrize("name", GALLERY)
def test_axes_of_the_gallery_mean_what_is_declared(name: str) -> None:
    check(GALLERY[name])
