"""OpenGL without a display, with which MuJoCo draws videos."""

from __future__ import annotations

import os
import subprocess
import sys

from rlpipe.errors import ConfigError
from rlpipe.plugins import require

EXTRA = "video"
"""Optional packages that videos need."""
PACKAGES = ("mujoco", "imageio_ffmpeg", "PIL")
LIBRARIES = ("egl", "osmesa") if sys.platform == "linux" else ("glfw",)
"""Ways to OpenGL without a display, in the order in which they are tried (``MUJOCO_GL``)."""
_PROBE = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), 8, 8).render()"
_PROBE_SECONDS = 60.0


def check_drawing(key: str) -> str:
    """Checks that videos, which an option asks for, can be made on this machine.

    Returns:
        Value of ``MUJOCO_GL`` for the process that draws them.
    Raises:
        ConfigError: a package or OpenGL is missing; the message says what to install.
    """
    for package in PACKAGES:
        require(package, EXTRA, key)
    return choose_library()


def choose_library() -> str:
    """Finds the first library that can draw here, tried in another process, where it may crash.

    Returns:
        Its name: that in ``MUJOCO_GL``, if it was set.
    Raises:
        ConfigError: none can, or that in ``MUJOCO_GL`` cannot.
    """
    setting = os.environ.get("MUJOCO_GL", "")
    reasons = []
    for library in (setting,) if setting else LIBRARIES:
        environment = {**os.environ, "MUJOCO_GL": library}
        try:
            tried = subprocess.run(
                [sys.executable, "-c", _PROBE],
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            reasons.append(f"{library}: no answer within {_PROBE_SECONDS:g} s")
            continue
        if tried.returncode == 0:
            return library
        reasons.append(f"{library}: {(tried.stderr.strip().splitlines() or ['it crashed'])[-1]}")
    unset = "unset MUJOCO_GL, or " if setting else ""
    raise ConfigError(
        f"Videos need OpenGL without a display, which does not work here ({'; '.join(reasons)}): {unset}on Debian and "
        "Ubuntu, apt-get install libegl1 libgl1-mesa-dri, or libosmesa6. Replays (rlpipe replay) need none of it."
    )
