"""The models of the gallery are what the table says that their axes mean, under any layout."""

import pytest

from tests.testing.meanings import GALLERY, LAYOUTS
from tests.testing.test_meanings import check, check_layouts, check_losses


@pytest.mark.parametrize("name", GALLERY)
def test_axes_of_the_gallery_mean_what_is_declared(name: str) -> None:
    check(GALLERY[name])


@pytest.mark.parametrize("name", GALLERY)
def test_losses_of_the_gallery_are_means(name: str) -> None:
    check_losses(GALLERY[name])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", GALLERY)
def test_layouts_of_the_gallery_change_nothing(name: str, layout: str) -> None:
    check_layouts(GALLERY[name], layout)
