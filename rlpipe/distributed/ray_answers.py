"""Answers of actors that come from Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from rlpipe.distributed.answers import CallError
from rlpipe.distributed.post_mortem import means_loss, raised_in, user_error

_PATIENCE_SECONDS = 1e-5
"""Time for each pending reference in which the driver waits for more answers after the first: twenty times as long as
Ray needs to look at a reference, so that looking takes at most a twentieth of the driver's time. Ray counts whole
milliseconds, so below a hundred references it takes what is there."""


class RayAnswers:
    """Implements ``Answers`` for references of Ray objects."""

    def wait(self, refs: Sequence[Any], timeout: float) -> Sequence[Any]:
        done, pending = ray.wait(list(refs), timeout=timeout, fetch_local=False)
        if done and pending:  # Ray returns one; a wait for each would make the driver's time grow with the square
            patience = _PATIENCE_SECONDS * len(pending)
            more, _ = ray.wait(pending, num_returns=len(pending), timeout=patience, fetch_local=False)
            done = [*done, *more]
        return list(done)

    def take(self, refs: Sequence[Any]) -> list[Any]:
        try:
            return list(ray.get(list(refs)))
        except RayError:  # one of them failed: which?
            return [self._take_one(ref) for ref in refs]

    @staticmethod
    def _take_one(ref: Any) -> Any:
        try:
            return ray.get(ref)
        except RayError as error:
            return _call_error(error)

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        try:
            return ray.get(refs, timeout=timeout)
        except RayError as error:
            if isinstance(error, GetTimeoutError) and not isinstance(error, RayTaskError):  # not one inside the actor
                raise TimeoutError(str(error)) from error
            raise _call_error(error) from error

    def now(self) -> float:
        return time.monotonic()


def _call_error(error: RayError) -> CallError:
    actor = error.actor_id if isinstance(error, RayActorError) else raised_in(error)
    return CallError(error, refusal=user_error(error), is_loss=means_loss(error), actor=actor)
