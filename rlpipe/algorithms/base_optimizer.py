"""Adam on parameters that lie side by side in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rlpipe.errors import ConfigError


def flatten(parameters: Iterable[Tensor]) -> Tensor:
    """Moves parameters into one new tensor, in their order, and makes each of them a view of its piece."""
    own = list(parameters)
    whole = torch.cat([parameter.detach().reshape(-1) for parameter in own])
    for parameter, piece in zip(own, torch.split(whole, [parameter.numel() for parameter in own]), strict=True):
        parameter.data = piece.view(parameter.shape)
    return whole


class FlatAdam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980) for groups of parameters, each group one tensor and one call.

    For small networks, most of an optimiser's time goes into handling many tensors. Results are those of
    ``torch.optim.Adam`` up to the last bit, which follows from where a number lies in its tensor.

    Attributes:
        groups: [P_g] parameters of each group, side by side.
    """

    def __init__(self, *groups: Iterable[Tensor], eps: float = 1e-8) -> None:
        """Moves the parameters into one tensor for each group.

        Args:
            groups: parameters of each group.
            eps: Adam's epsilon.
        Raises:
            ValueError: a parameter is in two groups, or twice in one.
        """
        members = [list(group) for group in groups]
        self._parameters = [parameter for group in members for parameter in group]
        if len({id(parameter) for parameter in self._parameters}) < len(self._parameters):
            raise ValueError("a parameter appears twice, in one group or in two; each can be optimised once only.")
        self.groups = [flatten(group) for group in members]
        self._counts = [len(group) for group in members]
        self._adam = torch.optim.Adam([{"params": [group]} for group in self.groups], lr=0.0, eps=eps, fused=True)

    def set_options(self, rates: Sequence[float], eps: float | None = None) -> None:
        """Sets the learning rate of each group, and, if given, Adam's epsilon."""
        for group, rate in zip(self._adam.param_groups, rates, strict=True):
            group["lr"] = rate
            if eps is not None:
                group["eps"] = eps

    def gradients(self, loss: Tensor) -> Tensor:
        """[P] gradient of a scalar, of all groups side by side; 0 where a parameter has no part in it."""
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(loss, trained, allow_unused=True))
        pieces = []
        for parameter in self._parameters:
            gradient = next(found) if parameter.requires_grad else None
            pieces.append((torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1))
        return torch.cat(pieces)

    def split(self, gradients: Tensor) -> tuple[Tensor, ...]:
        """[P_g] views of each group's share of [P] gradients."""
        return torch.split(gradients, [len(group) for group in self.groups])

    def step(self, gradients: Tensor, finite: Tensor | None = None) -> None:
        """Takes one step along [P] gradients, unless ``finite`` is False, which only the device needs to know."""
        for group, gradient in zip(self.groups, self.split(gradients), strict=True):
            group.grad = gradient
        if finite is not None:
            self._adam.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self._adam.step()

    def state(self) -> dict[str, Tensor]:
        """State by ``<number of the parameter>/<name>``, as of an optimiser with a tensor for each parameter."""
        state: dict[str, Tensor] = {}
        for group, members, first in self._members():
            if kept := self._adam.state.get(group):
                sizes = [parameter.numel() for parameter in members]
                for name in ("exp_avg", "exp_avg_sq"):
                    pieces = zip(members, torch.split(kept[name], sizes), strict=True)
                    state |= {f"{first + n}/{name}": piece.view(like.shape) for n, (like, piece) in enumerate(pieces)}
                state |= {f"{first + n}/step": kept["step"] for n in range(len(members))}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores copies of what ``state`` returned, on the devices of the parameters.

        Raises:
            ConfigError: the state belongs to other parameters.
        """
        self._check(state)
        for group, members, first in self._members():
            steps = [state[key] for n in range(len(members)) if (key := f"{first + n}/step") in state]
            if not steps:
                self._adam.state.pop(group, None)
                continue
            kept = {"step": torch.stack(steps).max().to(group.device, torch.float32)}
            for name in ("exp_avg", "exp_avg_sq"):
                pieces = [state.get(f"{first + n}/{name}", torch.zeros_like(like)) for n, like in enumerate(members)]
                kept[name] = torch.cat([piece.reshape(-1).to(group) for piece in pieces])
            self._adam.state[group] = kept

    def _members(self) -> Iterator[tuple[Tensor, list[Tensor], int]]:
        """Yields each group, its parameters, and the number of the first of them."""
        first = 0
        for group, count in zip(self.groups, self._counts, strict=True):
            yield group, self._parameters[first : first + count], first
            first += count

    def _check(self, state: Mapping[str, Tensor]) -> None:
        for key, value in state.items():
            index, name = key.split("/")
            shapes = [(), *(tuple(own.shape) for own in self._parameters[int(index) : int(index) + 1])]
            if tuple(value.shape) not in shapes:  # a step count, or one value per weight
                raise ConfigError(
                    f"the optimiser's {name} of shape {tuple(value.shape)} does not fit parameter {index} of "
                    f"{len(self._parameters)}: it was saved with another policy or for another task."
                )


def clip_norm(gradient: Tensor, limit: float | None) -> Tensor:
    """Scales a [P] gradient in place to at most a norm, if there is a limit; returns the [] norm before."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if limit is not None:
        gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return norm
