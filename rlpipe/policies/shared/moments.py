"""Running mean and variance of observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup


class RunningMoments(nn.Module):
    """Mean and variance of each dimension over all values so far.

    Batches merge by Chan's formula in float64, so one batch, its pieces in turn, or the shares of several learners give
    the same moments.  Chan, Golub, LeVeque 1983, The American Statistician 37:242-247.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, width: int) -> None:
        """Starts without values: normalising changes nothing yet."""
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))

    def update(self, values: Tensor, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Adds [B, width] values of this learner, and those of the other learners."""
        values = values.double()
        mean = values.sum(0) / max(len(values), 1)
        moments = torch.stack([torch.full_like(mean, len(values)), mean, (values - mean).square().sum(0)])
        for count, mean, squares in torch.stack(learners.gather(moments)):
            total = self.count + count
            share = count / total.clamp(min=1.0)
            delta = mean - self.mean
            self.mean += delta * share
            self.squares += squares + delta.square() * self.count * share
            self.count.copy_(total[0])

    def normalize(self, values: Tensor) -> Tensor:
        """Shifts and scales values to mean 0 and deviation 1, clamped to 10 deviations; unchanged before any update."""
        deviation = (self.squares / self.count.clamp(min=1.0) + 1e-8).sqrt()
        normal = ((values - self.mean.float()) / deviation.float()).clamp(-10.0, 10.0)
        return torch.where(self.count > 0, normal, values)  # reading the count on the host would wait for the device
