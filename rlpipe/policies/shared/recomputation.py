"""Gradient checkpointing, Chen et al. 2016, arXiv:1604.06174: what a module computes is dropped and computed again.

The backward pass then needs the activations of one such module at a time, for one more forward pass in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

_FORWARD = "forward"


def recompute(modules: Iterable[nn.Module]) -> None:
    """Lets modules keep only their inputs for the backward pass; names and values of weights stay the same."""
    for module in modules:
        if not is_recomputed(module):
            draws = any(isinstance(part, _DropoutNd) and part.training and part.p > 0 for part in module.modules())
            # on the instance, as accelerate does it: a module around it would rename the weights
            setattr(module, _FORWARD, partial(_recomputed, module.forward, draws))


def is_recomputed(module: nn.Module) -> bool:
    """Returns True if ``recompute`` was called with the module."""
    return _FORWARD in vars(module)


def _recomputed(forward: Callable[..., Any], draws: bool, *inputs: Any, **options: Any) -> Any:
    """Computes ``forward``; ``draws`` is True if it draws random numbers, which it must then draw again."""
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=draws, **options)
