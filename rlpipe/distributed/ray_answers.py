"""Answers of actors that come from Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from rlpipe.distributed.answers import CallError
from rlpipe.distributed.post_mortem import means_loss, raised_in, user_error


class RayAnswers:
    """Implements ``Answers`` for references of Ray objects."""

    def wait(self, refs: Sequence[Any], timeout: float) -> Sequence[Any]:
        done, _ = ray.wait(list(refs), timeout=timeout, fetch_local=False)
        return list(done)

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
