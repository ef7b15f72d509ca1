"""Runs gradient steps: each as Python says, or recorded once for each shape as a CUDA graph and then replayed.

A small network's step is some 200 operations of a few microseconds each on a GPU, which the host needs ten times as
long to ask for. A replay asks for all of them at once. Learners describe a step as a program: a function of tensors
that writes weights, moments and targets in place and returns what was observed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from rlpipe.errors import ConfigError
from rlpipe.learning.recordable import OperationCheck, difference, facts_of
from rlpipe.learning.structures import Packed, by_type, form_of, moved, tensors_in, with_tensors

STEPS = 8
"""Gradient steps of the longest recording. What several replays of one step cost the host is small beside them."""
WARM_UP = 3
"""Steps of each shape that run as Python says before one is recorded: libraries choose their kernels in them."""
MOST_CHANGES = 8
"""Updates in a row in which recordings may be outdated before whatever changes is taken to change in every update."""
MOST_FORMS = 64
"""Forms of inputs, none of which has come often enough to be recorded, after which none is expected to."""
MOST_RECORDINGS = 32
"""Recordings that are kept; the one that was not used for longest goes first."""
MOST_BYTES = 2**28
"""Size of the inputs of several steps that are recorded together; one step may have more."""
KEPT_BYTES = 2**30
"""Size of the inputs of all recordings that are kept beside the newest."""

Program = Callable[[Any], Any]

_UNENDED: list[torch.cuda.CUDAGraph] = []
"""Graphs that CUDA refused to end. They are kept because torch's allocator of pinned memory still asks them; no other
recording follows, so they are few."""


class Recorder(Protocol):
    """Records what a function does on a device."""

    def warm_up(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds steps that run as Python says before a recording."""

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Returns a function that repeats the operations of another, and what that one returned. Executes nothing."""


class CudaRecorder:
    """Records CUDA graphs, which share their memory because they are replayed one after the other."""

    def __init__(self, device: torch.device) -> None:
        """Makes the stream that steps are recorded on."""
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def warm_up(self) -> Iterator[None]:
        """Runs steps on the stream of the recordings: what autograd keeps of another one would break them."""
        outside = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outside.wait_stream(self._stream)

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Records a graph. Other threads, such as Ray's, may use the device meanwhile."""
        graph, outside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                outputs = function()
        except BaseException:
            self._end(graph)
            raise
        finally:
            torch.cuda.set_stream(outside)  # which a recording that fails leaves unset
        return graph.replay, outputs

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends what torch leaves open where CUDA refuses to end a recording: the pool that gets all allocations."""
        memory, number = torch.cuda.memory, self._stream.device.index
        with contextlib.suppress(RuntimeError):  # the first of these raises if nothing is open
            memory._cuda_endAllocateToPool(number, self._pool)  # type: ignore[attr-defined]
            _UNENDED.append(graph)
            memory._cuda_releasePool(number, self._pool)  # type: ignore[attr-defined]


def make_recorder(device: torch.device) -> Recorder | None:
    """Returns what records steps on a device; None where nothing does."""
    return CudaRecorder(device) if device.type == "cuda" else None


class Recording:
    """Several gradient steps with inputs of their own, recorded one after the other.

    Attributes:
        nbytes: size of the inputs.
    """

    def __init__(self, recorder: Recorder, program: Program, inputs: Sequence[Any]) -> None:
        """Records the steps of a program, without executing them."""
        self._inputs = with_tensors(tuple(inputs), torch.clone)
        self._places = by_type(self._inputs)
        self.nbytes = sum(tensor.nbytes for tensor in tensors_in(self._inputs))
        self._replay, self._outputs = recorder.record(lambda: Packed(tuple(map(program, self._inputs))))

    @torch.no_grad()
    def replay(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Takes the steps with other inputs of the same form; returns what each observed."""
        present = by_type(tuple(inputs))
        for dtype, places in self._places.items():
            torch._foreach_copy_(places, present[dtype], non_blocking=True)
        self._replay()
        outputs: tuple[Any, ...] = self._outputs.copy()
        return outputs


class Stepper:
    """Runs the gradient steps of a learner on its device."""

    def __init__(
        self,
        device: torch.device,
        graphs: bool | str,
        state: Callable[[], Mapping[str, object]],
        notes: list[str],
    ) -> None:
        """Takes steps as ``learner.graphs`` says.

        Args:
            device: device of the learner.
            graphs: value of ``learner.graphs``.
            state: returns the objects, by name, that programs read and write beside their inputs.
            notes: gets a sentence for the user if steps are not recorded.
        Raises:
            ConfigError: graphs are required, and nothing records them on this device.
        """
        self._device, self._required, self._state = device, graphs is True, state
        self._recorder = None if graphs is False else make_recorder(device)
        if self._required and self._recorder is None:
            raise ConfigError(f"learner.graphs is true, but there are no CUDA graphs on {device}: set it to auto.")
        self._recordings: dict[Hashable, Recording] = {}
        self._warm: Counter[Hashable] = Counter()
        self._any_is_warm = False
        self._facts: dict[str, Hashable] = {}  # as they were when the present recordings were made
        self._changes, self._may_have_changed = 0, True
        self._notes = notes

    @property
    def records(self) -> bool:
        """True if steps may be recorded, so that equal shapes are worth having."""
        return self._recorder is not None

    def begin_update(self) -> None:
        """Says that numbers and tensors may have been replaced since the last step."""
        self._may_have_changed = True

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """Takes a gradient step for each input.

        Args:
            program: method that takes one step: a function of its input and of the state alone, which it writes in
                place. It returns tensors without gradients, in any structure.
            inputs: structures of tensors, on the host or the device. All else in them is part of a step's form.
        Returns:
            What the program returned for each input.
        """
        inputs = moved(inputs, self._device)
        if self._recorder is None:
            return [program(each) for each in inputs]
        self._drop_outdated()
        outputs: list[Any] = []
        while len(outputs) < len(inputs):
            left = inputs[len(outputs) :]
            size = sum(tensor.nbytes for tensor in tensors_in(left[0]))
            most = max(1, min(STEPS, len(left), MOST_BYTES // max(1, size)))
            count = 1 << (most.bit_length() - 1)  # few different lengths, so few recordings
            outputs += self._run_together(program, left[:count])
        return outputs

    def _run_together(self, program: Program, inputs: Sequence[Any]) -> Sequence[Any]:
        forms = tuple((program.__name__, form_of(each)) for each in inputs)
        if self._recorder is None or any(self._warm[form] < WARM_UP for form in forms):
            return [self._warm_up(program, form, each) for form, each in zip(forms, inputs, strict=True)]
        recording = self._recordings.pop(forms, None)
        if recording is None:
            recording, reason = self._record(program, inputs)
            if recording is None:  # now without what the failed recording held
                self.refuse(reason)
                return [program(each) for each in inputs]
        self._recordings[forms] = recording
        return recording.replay(inputs)

    def _record(self, program: Program, inputs: Sequence[Any]) -> tuple[Recording | None, str]:
        """Records steps; or returns none and the reason why not."""
        assert self._recorder is not None
        try:
            recording = Recording(self._recorder, program, inputs)
        except Exception as error:
            first: BaseException = error
            while first.__context__ is not None:  # a failed recording fails once more where it ends
                first = first.__context__
            return None, f"{type(first).__name__}: {first}".strip().splitlines()[0]
        if not self._recordings:
            self._facts = facts_of(self._state())
        sizes = [each.nbytes for each in self._recordings.values()]
        while sizes and (len(sizes) >= MOST_RECORDINGS or sum(sizes) > KEPT_BYTES):
            del self._recordings[next(iter(self._recordings))], sizes[0]
        return recording, ""

    def _warm_up(self, program: Program, form: Hashable, inputs: Any) -> Any:
        """Takes a step as Python says; the last one before a recording shows whether it can be replayed."""
        if self._recorder is None:
            return program(inputs)
        self._warm[form] += 1
        self._any_is_warm |= self._warm[form] >= WARM_UP
        if len(self._warm) > MOST_FORMS and not self._any_is_warm:
            self.refuse(f"none of {MOST_FORMS} shapes of minibatches has come {WARM_UP} times")
            return program(inputs)
        with self._recorder.warm_up():
            if self._warm[form] != WARM_UP:
                return program(inputs)
            before = facts_of(self._state())
            with OperationCheck(self._device) as check:
                outputs = program(inputs)
        path = difference(before, facts_of(self._state()))
        if check.reason or path:
            self.refuse(check.reason or f"{path} changes in each step, but not in place")
        return outputs

    def _drop_outdated(self) -> None:
        """Forgets all recordings, once an update, if a number that they keep has changed, or a tensor was replaced."""
        if not (self._may_have_changed and self._recordings):
            return
        self._may_have_changed, facts = False, facts_of(self._state())
        if (path := difference(self._facts, facts)) is None:
            self._changes = 0
            return
        self._recordings.clear()
        self._recorder = make_recorder(self._device)  # with memory of its own: that of the others is given back
        self._changes += 1
        if self._changes > MOST_CHANGES:
            before, now = self._facts.get(path), facts.get(path)
            self.refuse(f"{path}, which a recording keeps, changes again and again, now from {before} to {now}")

    def refuse(self, reason: str) -> None:
        """Records nothing from now on, and says why in a note, unless nothing was recorded anyway.

        Raises:
            ConfigError: ``learner.graphs`` is true, or the device does not work any more.
        """
        if self._recorder is None:
            return
        self._recordings.clear()
        self._warm.clear()
        self._recorder = None
        if self._required:
            raise ConfigError(
                f"learner.graphs is true, but the gradient steps of this run cannot be recorded: {reason}. Set "
                "learner.graphs=auto, which then runs them without."
            )
        self._notes.append(f"gradient steps run without CUDA graphs (learner.graphs): {reason}.")
        self._probe()

    def _probe(self) -> None:
        """Raises ConfigError if the device no longer works after a recording that failed."""
        try:
            torch.zeros(1, device=self._device).add_(1).cpu()
        except RuntimeError as error:
            raise ConfigError(
                f"{self._device} does not work any more after a recording of CUDA graphs failed ({error}): resume with "
                "learner.graphs=false."
            ) from error
