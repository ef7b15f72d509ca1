"""Fixtures shared by tests of cameras."""

from __future__ import annotations

import pytest

from rlpipe.envs.shared.rendering import can_render


@pytest.fixture(scope="session")
def vulkan():
    """Skips a test where nothing can be rendered."""
    if not can_render():
        pytest.skip("no Vulkan device: needs a GPU's driver, or Mesa's lavapipe 24.3 or newer")
