"""Rendering of ManiSkill's cameras: tells whether this machine can, and what to install where it cannot."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

INSTALL_VULKAN = (
    "Install a Vulkan driver: that of the GPU or, for the CPU, Mesa's lavapipe 24.3 or newer (Debian: `apt install -t "
    "bookworm-backports mesa-vulkan-drivers`). See docs/cameras.md."
)
_SECONDS = 30


@functools.cache
def can_render() -> bool | None:
    """True if SAPIEN can render, tried in a process of its own because a bad driver may crash it; None without SAPIEN.

    The answer is kept: it takes a second, and this process remains without a device, so that it can still be forked.
    """
    if importlib.util.find_spec("sapien") is None:
        return None
    command = [sys.executable, "-W", "ignore", "-c", "import sapien.render; sapien.render.RenderMaterial()"]
    try:
        return subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
