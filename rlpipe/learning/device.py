"""Checks the learner's device."""

from __future__ import annotations

import platform

from rlpipe.errors import ConfigError


def check_device(device: str) -> None:
    """Checks that torch finds the device; called in the learner's process, which may be on another node.

    Raises:
        ConfigError: it does not.
    """
    if device.startswith("cuda"):
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found <= int(device.partition(":")[2] or 0):
            devices = f"{found} CUDA device{'s' * (found != 1)}" if found else "no CUDA device"
            raise ConfigError(
                f"learner.device is {device!r}, but torch {torch.__version__} finds {devices} on {platform.node()}."
            )
