"""Adam on parameters that lie side by side in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from rlpipe.errors import ConfigError

_NAMES = ("step", "exp_avg", "exp_avg_sq")
_MASTER = "master"


def flatten(parameters: Iterable[Tensor]) -> Tensor:
    """Copies parameters into one new float32 tensor, in their order; those of float32 become views of their pieces."""
    members = list(parameters)
    whole = torch.cat([parameter.detach().reshape(-1).float() for parameter in members])
    for parameter, piece in zip(members, _pieces(whole, members), strict=True):
        if parameter.dtype == torch.float32:
            parameter.data = piece
    return whole


def _pieces(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of the pieces of a [P] tensor, with the shapes of other tensors."""
    split = torch.split(whole, [tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(split, like, strict=True)]


class FlatAdam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980) for groups of parameters, each group one tensor and one call.

    For small networks, most of an optimiser's time goes into handling many tensors. Results are those of
    ``torch.optim.Adam`` up to the last bit, which follows from where a number lies in its tensor.

    A parameter of another type than float32, such as bfloat16, has float32 master weights here. After each step it is
    their rounding, so steps below its precision add up (Micikevicius et al. 2018, arXiv:1710.03740, section 3.1).

    Attributes:
        groups: [P_g] float32 parameters of each group, side by side.
    """

    def __init__(self, *groups: Iterable[Tensor], eps: float = 1e-8) -> None:
        """Moves the parameters into one tensor for each group.

        Raises:
            ValueError: a parameter is in two groups, or twice in one.
        """
        members = [list(group) for group in groups]
        self._parameters = [parameter for group in members for parameter in group]
        if len({id(parameter) for parameter in self._parameters}) < len(self._parameters):
            raise ValueError("a parameter appears twice, in one group or in two; each can be optimised once only.")
        self.groups = [flatten(group) for group in members]
        self._counts = [len(group) for group in members]
        self._eps = eps
        # On the device, so that a recorded step has the present rate: rounded to float32 on a GPU, exact on a CPU.
        self._rates = [
            torch.zeros((), dtype=torch.float32 if group.is_cuda else torch.float64, device=group.device)
            for group in self.groups
        ]
        self._moments = [(torch.zeros_like(group), torch.zeros_like(group)) for group in self.groups]
        self._steps = [torch.zeros((), device=group.device) for group in self.groups]
        masters = itertools.chain.from_iterable(map(_pieces, self.groups, members))
        self._masters = {
            number: master
            for number, (parameter, master) in enumerate(zip(self._parameters, masters, strict=True))
            if parameter.dtype != torch.float32
        }

    def set_options(self, rates: Sequence[float], eps: float | None = None) -> None:
        """Sets the learning rate of each group, and, if given, Adam's epsilon.

        Raises:
            ValueError: there is not one rate for each group.
        """
        if len(rates) != len(self.groups):
            raise ValueError(f"{len(rates)} learning rates do not fit {len(self.groups)} groups of parameters.")
        for present, rate in zip(self._rates, rates, strict=True):
            present.fill_(rate)
        self._eps = self._eps if eps is None else eps

    def gradients(self, loss: Tensor) -> Tensor:
        """[P] gradient of a scalar, of all groups side by side; 0 where a parameter has no part in it."""
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        computed = iter(torch.autograd.grad(loss, trained, allow_unused=True))
        pieces = []
        for parameter in self._parameters:
            gradient = next(computed) if parameter.requires_grad else None
            pieces.append((torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1).float())
        return torch.cat(pieces)

    def split(self, gradients: Tensor) -> tuple[Tensor, ...]:
        """[P_g] views of each group's share of [P] gradients."""
        return torch.split(gradients, [len(group) for group in self.groups])

    @torch.no_grad()
    def step(self, gradients: Tensor, finite: Tensor | None = None) -> None:
        """Takes one step along [P] gradients, unless ``finite`` is False, which only the device needs to know."""
        self._follow_parameters()
        found_inf = None if finite is None else (~finite).float()
        for group, gradient, (mean, square), step, rate in zip(
            self.groups, self.split(gradients), self._moments, self._steps, self._rates, strict=True
        ):
            adam(  # without the class around it, which takes twice as long as this for a small network
                [group], [gradient], [mean], [square], [], [step], fused=True, found_inf=found_inf, amsgrad=False,
                beta1=0.9, beta2=0.999, lr=rate, weight_decay=0.0, eps=self._eps, maximize=False,
            )  # fmt: skip
        for number, master in self._masters.items():
            self._parameters[number].copy_(master)

    def _follow_parameters(self) -> None:
        """Takes over parameters that were loaded since the last step: they are not the rounding of their masters."""
        for number, master in self._masters.items():
            present = self._parameters[number]
            master.copy_(torch.where(master.to(present.dtype) == present, master, present.float()))

    def state(self) -> dict[str, Tensor]:
        """State by ``<number of the parameter>/<name>``, as of an optimiser with a tensor for each parameter."""
        state: dict[str, Tensor] = {}
        for (mean, square), step, members in zip(self._moments, self._steps, self._members(), strict=True):
            sizes = [like.numel() for _, like in members]
            for (number, like), *pieces in zip(
                members, torch.split(mean, sizes), torch.split(square, sizes), strict=True
            ):
                values = [step, *(piece.view(like.shape) for piece in pieces)]
                state |= {f"{number}/{name}": value for name, value in zip(_NAMES, values, strict=True)}
        return state | {f"{number}/{_MASTER}": master for number, master in self._masters.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores copies of what ``state`` returned, on the devices of the parameters.

        Raises:
            ConfigError: the state belongs to other parameters.
        """
        self._check(state)
        for moments, step, members in zip(self._moments, self._steps, self._members(), strict=True):
            step.zero_()
            for number, _ in members:
                step.copy_(torch.maximum(step, state.get(f"{number}/step", step).to(step)))
            for moment, name in zip(moments, _NAMES[1:], strict=True):  # what was never learnt may have no state
                pieces = [state.get(f"{number}/{name}", torch.zeros_like(like)) for number, like in members]
                moment.copy_(torch.cat([piece.reshape(-1).to(moment) for piece in pieces]))
        for number, master in self._masters.items():
            master.copy_(state.get(f"{number}/{_MASTER}", self._parameters[number]))

    def _members(self) -> Iterator[list[tuple[int, Tensor]]]:
        """Yields the parameters of each group, with their numbers."""
        numbered = enumerate(self._parameters)
        for count in self._counts:
            yield list(itertools.islice(numbered, count))

    def _check(self, state: Mapping[str, Tensor]) -> None:
        for key, value in state.items():
            index, name = key.split("/")
            shapes = [(), *(tuple(parameter.shape) for parameter in self._parameters[int(index) : int(index) + 1])]
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
