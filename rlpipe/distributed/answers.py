"""Answers of actors, as the worker pool sees them: without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlpipe.errors import ConfigError, ContractError


class CallError(Exception):
    """A call of an actor failed.

    Attributes:
        error: Ray's exception.
        refusal: the ConfigError or ContractError that the actor raised; None if it raised something else or did not
            raise.
        is_loss: True if a process or an object is gone; False if code in the actor raised.
        actor: Ray's id of the actor that is gone, or whose code raised; None if unknown.
    """

    def __init__(
        self,
        error: BaseException,
        *,
        refusal: ConfigError | ContractError | None = None,
        is_loss: bool = False,
        actor: str | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.refusal = refusal
        self.is_loss = is_loss
        self.actor = actor


class Answers(Protocol):
    """Source of answers, with its clock."""

    def wait(self, refs: Sequence[Any], timeout: float) -> Sequence[Any]:
        """Waits until there is an answer or the time is over; returns all references that have one, in their order."""

    def take(self, refs: Sequence[Any]) -> list[Any]:
        """Returns what each of these references has been answered, or the ``CallError`` of a call that failed."""

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        """Returns the answer to a reference, or the list of answers to a list of references.

        Raises:
            TimeoutError: not all answers came in time.
            CallError: a call failed; of a list, the first that is found.
        """

    def now(self) -> float:
        """Returns the seconds of a clock that never goes back."""
