"""Minibatches in pieces: their activations exist one after the other, and their gradients are summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlpipe.algorithms.shared.optimizer import FlatAdam
from rlpipe.policies.base import Policy
from rlpipe.trajectory.sequences import Sequences

Summand = tuple[Tensor, Mapping[str, Tensor]]
"""Loss of a piece as a summand of its minibatch's, a scalar with gradients; and by name, terms [b, ...] of its rows."""


def cut(rows: int, size: int | None, together: Tensor | None = None) -> list[slice]:
    """Cuts the rows of a minibatch into pieces; without any rows there is one empty piece.

    Args:
        rows: number of rows.
        size: most rows of a piece; None for one piece.
        together: [rows] number of the trajectory that each row stays with, each trajectory's rows side by side; None if
            rows may be cut anywhere. A trajectory longer than ``size`` is a piece of its own.
    """
    if size is None or rows <= size:
        return [slice(0, rows)]
    if together is None:
        return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]
    lengths = torch.unique_consecutive(together, return_counts=True)[1].tolist()
    begins = [0]
    end = 0
    for length in lengths:
        if end + length - begins[-1] > size and end > begins[-1]:
            begins.append(end)
        end += length
    return [slice(begin, end) for begin, end in zip(begins, [*begins[1:], rows], strict=True)]


def gradients_in_pieces(
    optimizer: FlatAdam, summand: Callable[[slice], Summand], pieces: Sequence[slice]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sums the gradients of the pieces of a minibatch; with one piece, the bits are those of ``optimizer.gradients``.

    Args:
        optimizer: of the parameters.
        summand: computes a piece, given its rows.
        pieces: from ``cut``.
    Returns:
        The [] loss of the minibatch, its [P] gradient, and the terms [B, ...] of all its rows.
    """
    loss, terms = summand(pieces[0])
    gradient, total, every = optimizer.gradients(loss), loss.detach(), [terms]
    for piece in pieces[1:]:
        del loss  # and with it what was kept for its gradient
        loss, terms = summand(piece)
        gradient += optimizer.gradients(loss)
        total = total + loss.detach()
        every.append(terms)
    if len(every) == 1:
        return total, gradient, dict(terms)
    return total, gradient, {name: torch.cat([piece[name] for piece in every]) for name in terms}


class InPieces:
    """A policy that evaluates at most so many observations at a time, without gradients; all else is the policy's.

    ``Sequences`` are evaluated at once: their rows lie in any order.
    """

    def __init__(self, policy: Policy, size: int) -> None:
        """Keeps the policy, whose weights may change."""
        self._policy, self._size = policy, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def value(self, observations: Any) -> Tensor:
        """See ``Policy.value``."""
        return torch.cat([self._policy.value(observations[piece]) for piece in self._cut(observations)])

    def evaluate_actions(self, *decisions: Any) -> tuple[Tensor, ...]:
        """See ``Policy.evaluate_actions``."""
        return self._joined(self._policy.evaluate_actions, decisions)

    def evaluate_parts(self, *decisions: Any) -> tuple[Tensor, ...]:
        """See ``Policy.evaluate_parts``."""
        return self._joined(self._policy.evaluate_parts, decisions)

    def _cut(self, observations: Any) -> list[slice]:
        return cut(len(observations), None if isinstance(observations, Sequences) else self._size)

    def _joined(self, evaluate: Callable[..., tuple[Tensor, Tensor]], decisions: Sequence[Any]) -> tuple[Tensor, ...]:
        pieces = [evaluate(*(each[piece] for each in decisions)) for piece in self._cut(decisions[0])]
        return tuple(map(torch.cat, zip(*pieces, strict=True)))
