"""Program of a simulator's process: makes the simulator, and answers what ``simulator`` asks.

It needs no more than the step contract and the simulator itself.
"""

from __future__ import annotations

import faulthandler
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpipe.envs.base import KEY, Step, TaskFacts, no_spaces, nothing_needed
from rlpipe.envs.shared.child_process.channel import METRIC, Channel, ClosedError
from rlpipe.errors import ConfigError, ContractError, how_it_failed
from rlpipe.foreign import keep_sockets_short
from rlpipe.plugins import resolve

if TYPE_CHECKING:  # another Python does without
    from rlpipe.metrics.declaration import Metric


def serve(connection: int, read: int, written: int) -> None:
    """Answers until the channel is closed.

    Args:
        connection: descriptor of the socket.
        read: descriptor of the memory that the worker writes.
        written: descriptor of the memory that this process writes.
    """
    faulthandler.enable()
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the driver
    faulthandler.register(signal.SIGUSR1)  # the worker asks where a simulator hangs
    keep_sockets_short()
    server = _Server(Channel(socket.socket(fileno=connection), written, read))
    try:
        while server.answer_next():
            pass
    except ClosedError:
        pass


class _Server:
    """Answers the calls of a worker.

    Each method is a call. What it raises is an answer too.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._simulator: Any = None  # until it is made

    def answer_next(self) -> bool:
        """Waits for a call, and answers it; False after the last one."""
        name, arguments = self._channel.receive()
        answer: tuple[Any, ...]
        try:
            value = getattr(self, name)(*arguments)
            answer = ("answer", value, getattr(self._simulator, "reset_seconds", None))
        except ClosedError:
            raise
        except BaseException as error:
            answer = _failure(error)
        try:
            self._channel.send(answer)
        except ClosedError:
            raise
        except Exception as error:  # an answer that cannot be sent
            self._channel.send(_failure(error))
        return bool(name != "close")

    def _asks(self, what: str) -> Callable[[int], Any]:
        def ask(n: int) -> Any:
            self._channel.send((what, n))
            return self._channel.receive()

        return ask

    def tasks(self, name: str) -> Any:
        return resolve("envs", name, "--simulator").tasks()

    def questions(self, config: Any) -> dict[str, Any]:
        """Answers all questions on a configuration at once: ("answer", value), or what a failure is."""
        try:
            facts: TaskFacts = resolve("envs", config.name, f"{KEY}.name").describe(config, KEY)
        except BaseException as error:
            return {"facts": _failure(error)}
        answers: dict[str, Any] = {
            "facts": ("answer", replace(facts, find_spaces=no_spaces, check_machine=nothing_needed))
        }
        for name, question in (("spaces", facts.find_spaces), ("machine", facts.check_machine)):
            try:
                answers[name] = ("answer", question())
            except BaseException as error:
                answers[name] = _failure(error)
        return answers

    def make(self, config: Any, num_envs: int) -> dict[str, Any]:
        """Makes the simulator. Returns its attributes."""
        simulator_class = resolve("envs", config.name, f"{KEY}.name")
        self._simulator = simulator_class.make(config, num_envs, self._asks("next_seed"))
        names = ("spec", "num_envs", "has_success", "notes", "can_wait")
        return {name: getattr(self._simulator, name) for name in names}

    def vary(self, variations: Any) -> None:
        self._simulator.vary(variations)

    def reset(self, chooses: bool) -> Any:
        self._simulator.next_start = self._asks("next_start") if chooses else None
        return self._simulator.reset()

    def step(self, actions: Any, *waiting: Any) -> Step:
        step: Step = self._simulator.step(actions, *waiting)
        # A metric is known by its name on the other side, where the same one is declared.
        observed: dict[str | Metric, Any] = {
            key if isinstance(key, str) else f"{METRIC}{key.name}": values for key, values in step.observed.items()
        }
        return replace(step, observed=observed) if observed else step

    def state(self, n: int) -> Any:
        return self._simulator.state(n)

    def expert_action(self, n: int) -> Any:
        return self._simulator.expert_action(n)

    def close(self) -> None:
        if self._simulator is not None:
            self._simulator.close()


def _failure(error: BaseException) -> tuple[str, ...]:
    """Answer that stands for an exception, whose class the other side may not have."""
    if isinstance(error, ConfigError):
        return "refused", str(error)
    if isinstance(error, ContractError):
        return "wrong", error.problem
    if isinstance(error, ModuleNotFoundError) and error.name:
        return "refused", f"{sys.executable} lacks {error.name}: install it there."
    return "raised", how_it_failed(error), "".join(traceback.format_exception(error))
