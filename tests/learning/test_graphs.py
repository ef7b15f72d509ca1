"""Gradient steps that are recorded once and replayed are the steps that Python takes, to the last bit."""

from __future__ import annotations

import contextlib
import re
import types

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rlpipe
from rlpipe.algorithms.ppo import PPO
from rlpipe.errors import ConfigError
from rlpipe.learning import stepper
from rlpipe.learning.on_policy import usual_size
from rlpipe.learning.stepper import MOST_CHANGES, MOST_FORMS, WARM_UP, CudaRecorder, Stepper
from rlpipe.learning.structures import form_of
from rlpipe.training.first_weights import with_base_policy
from rlpipe.trajectory import Tree
from tests.helpers.emulated_graphs import EmulatedGraphs
from tests.helpers.learners import MAKE, collected, learner_of
from tests.helpers.runs import lines, scripted

CPU = torch.device("cpu")


@pytest.fixture
def recorder(monkeypatch):
    """Graphs for everything that is made from now on."""
    recorder = EmulatedGraphs()
    monkeypatch.setattr(stepper, "make_recorder", lambda device: recorder)
    return recorder


# --- learners

KINDS = ["cloning", "rlpd", "tree, ppo", "tree, chunks, grpo"]
RARER = [
    "tree, several parts, chunks, ppo", "tree, residual, chunks, sac", "goals in hindsight, sac",
    "tree, autoregressive tokens, ppo", "tree, tokens, grpo",
]  # fmt: skip


def updated(learner, updates):
    """All arrays of a learner after updates in some stages, and the metrics of each, without times."""
    windows = [learner.update(stage, number, *batches)[1] for number, (stage, batches) in enumerate(updates, 1)]
    assert [note for window in windows for note in window.notes] == []
    return learner.state(), [
        {name: repr(state) for name, state in window.states.items() if not name.startswith("time/")}
        for window in windows
    ]


def unequal(expected, found):
    """Names under which arrays differ in any bit."""
    assert expected.keys() == found.keys()
    return [name for name, array in expected.items() if array.tobytes() != found[name].tobytes()]


def replayed_like(config, monkeypatch, stages=(0, 0, 0, 0, 0)):
    """Lets a learner that replays do the updates of an ordinary one, while learning rates fall, and compares both."""
    spec, batches = collected(config)
    updates = [(stage, batches[number % len(batches)]) for number, stage in enumerate(stages)]
    arrays, metrics = updated(learner_of(config, spec), updates)
    recorder = EmulatedGraphs()
    monkeypatch.setattr(stepper, "make_recorder", lambda device: recorder)
    replayed, same = updated(learner_of(config, spec), updates)
    assert recorder.replays > recorder.recordings
    assert unequal(arrays, replayed) == []
    assert same == metrics


FALLING = ("learner.lr_schedule=linear", "learner.num_threads=1", "rollout.num_workers=1")


@pytest.mark.parametrize("name", [*KINDS, *(pytest.param(name, marks=pytest.mark.soak) for name in RARER)])
def test_replays_are_the_steps_of_the_ordinary_learner(name, tmp_path, monkeypatch):
    """Weights, moments, targets and metrics."""
    replayed_like(with_base_policy(MAKE[name](tmp_path, *FALLING)), monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "saving"), [("cloning", "policy.checkpoint_gradients=true"), ("tree, ppo", "learner.micro_batch=5")]
)
def test_steps_that_save_memory_are_replayed_too(name, saving, tmp_path, monkeypatch):
    replayed_like(MAKE[name](tmp_path, saving, *FALLING), monkeypatch)


def test_a_coefficient_that_no_step_reads_outdates_no_recording(tmp_path, monkeypatch):
    """The weight of an adaptive penalty moves before each update."""
    algorithm = {"name": "ppo", "num_minibatches": 2, "update_epochs": 2, "kl_control": "adaptive"}
    config = scripted(tmp_path, *FALLING, algorithm=algorithm)
    replayed_like(config, monkeypatch, stages=[0] * (MOST_CHANGES + 4))  # more than there may be changes in a row


def test_a_stage_with_other_numbers_is_recorded_anew(tmp_path, monkeypatch):
    halves = [
        {"name": "first", "timesteps": 128},
        {"name": "second", "overrides": {"algorithm.clip_ratio_low": 0.01, "learner.max_grad_norm": 0.1}},
    ]
    algorithm = {"name": "ppo", "num_minibatches": 2, "update_epochs": 2}
    config = scripted(tmp_path, *FALLING, stages=halves, algorithm=algorithm)
    replayed_like(config, monkeypatch, stages=(0, 0, 0, 1, 1, 1))


def fakes(name, tmp_path, monkeypatch):
    """Errors of the steps of a learner, each form taken on tensors that have a shape and no numbers; None for none."""
    config = with_base_policy(MAKE[name](tmp_path, "learner.num_threads=1", "rollout.num_workers=1"))
    spec, iterations = collected(config)
    errors = {}

    def run(self, program, inputs):
        if (form := (program.__name__, form_of(inputs[-1]))) not in errors:
            with FakeTensorMode(allow_non_fake_inputs=True):
                try:
                    errors[form] = program(inputs[-1]) and None
                except RuntimeError as error:
                    errors[form] = str(error)
        return [program(inputs[-1])] * len(inputs)  # nobody looks at what is learnt

    monkeypatch.setattr(Stepper, "run", run)
    learner = learner_of(config, spec)
    for number, batches in enumerate(iterations, 1):
        learner.update(0, number, *batches)
    return [*errors.values()]


@pytest.mark.parametrize("name", KINDS)
def test_no_step_needs_a_number_of_the_host(name, tmp_path, monkeypatch):
    errors = fakes(name, tmp_path, monkeypatch)
    assert errors
    assert set(errors) == {None}


def test_a_memory_does(tmp_path, monkeypatch):
    assert "_unique2" in fakes("tree, gru, shared encoder, ppo", tmp_path, monkeypatch)[0]


class Reads(PPO):
    """PPO that looks at its loss on the host."""

    def loss(self, policy, samples):
        loss = super().loss(policy, samples)
        assert float(loss.each.detach().sum()) < 1e9
        return loss


def test_where_graphs_are_required_a_plug_in_that_reads_is_refused_before_the_run(recorder, tmp_path):
    algorithm = {"name": "tests.learning.test_graphs:Reads", "update_epochs": 1, "num_minibatches": 2}
    with pytest.raises(ConfigError, match=r"learner\.graphs is true, but .*test_graphs\.py:\d+ reads a number"):
        rlpipe.train(scripted(tmp_path, "learner.graphs=true", algorithm=algorithm), local=True)
    assert not any(tmp_path.iterdir())


def test_otherwise_it_trains_without_graphs_and_the_run_says_so_once(recorder, tmp_path):
    algorithm = {"name": "tests.learning.test_graphs:Reads", "update_epochs": 1, "num_minibatches": 2}
    run = rlpipe.train(scripted(tmp_path, algorithm=algorithm), local=True).directory
    notes = [event["message"] for event in lines(run, "events.jsonl") if "CUDA graphs" in event["message"]]
    assert len(notes) == 1
    assert "test_graphs.py" in notes[0]


def test_a_compiled_loss_is_not_recorded_and_a_note_says_so(recorder, tmp_path, monkeypatch):
    """What is checked for a recording is the loss as Python says it, not as it would be recorded."""
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: loss)  # which takes minutes
    spec, (batches, _) = collected(scripted(tmp_path))
    learner = learner_of(scripted(tmp_path, "learner.compile=true"), spec)
    notes = [note for number in range(1, 4) for note in learner.update(0, number, *batches)[1].notes]
    assert len(notes) == 1
    assert "without CUDA graphs (learner.graphs): learner.compile is true" in notes[0]
    assert recorder.recordings == 0
    with pytest.raises(ConfigError, match=r"learner\.graphs is true, but .*learner\.compile is true"):
        learner_of(scripted(tmp_path, "learner.compile=true", "learner.graphs=true"), spec)


@pytest.mark.parametrize(
    ("device", "reason"), [("cpu", "learner.device is cpu"), ("auto", "there are no CUDA graphs on cpu")]
)
def test_without_a_gpu_graphs_cannot_be_required(device, reason, tmp_path):
    with pytest.raises(ConfigError, match=f"learner.graphs is true, but {reason}"):
        rlpipe.train(scripted(tmp_path, "learner.graphs=true", f"learner.device={device}"), local=True)
    assert not any(tmp_path.iterdir())


# --- single programs


class Weight:
    """A weight that follows its input, and what a careless program may do besides."""

    def __init__(self):
        self.value = torch.zeros(2)
        self.rate, self.steps, self.mean = 0.5, 0, torch.zeros(2)

    def follow(self, target):
        self.value += self.rate * (target - self.value)
        return {"value": self.value.clone()}

    def read(self, target):
        return self.follow(target if float(self.value.sum()) < 1e9 else 0 * target)

    def mask(self, target):
        return self.follow(target[target > -1.0])

    def draw(self, target):
        return self.follow(target + torch.rand(2))

    def copy_number(self, target):
        return self.follow(target * torch.tensor(self.rate))

    def count(self, target):
        self.steps += 1
        return self.follow(target)

    def replace(self, target):
        self.mean = 0.5 * (self.mean + target)
        return self.follow(self.mean)


def steps_of(weight, graphs="auto"):
    """Runs steps, and the list that gets its notes."""
    notes = []
    return Stepper(CPU, graphs, lambda: {"weight": weight}, notes), notes


def values(program, inputs):
    return [program(each)["value"].tolist() for each in inputs]


TARGETS = [torch.tensor([float(number), 1.0]) for number in range(1, 30)]


def test_steps_are_recorded_in_powers_of_two_after_a_warm_up_and_give_what_python_gives(recorder):
    expected, weight = Weight(), Weight()
    told = steps_of(weight)[0].run(weight.follow, TARGETS)
    assert [each["value"].tolist() for each in told] == values(expected.follow, TARGETS)
    assert WARM_UP == 3
    assert recorder.recordings == 3  # of 8, then of 2, and of 1: the first 8 of 29 steps were the warm-up
    assert recorder.replays == 4


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("read", r"test_graphs\.py:\d+ reads a number on the host"),
        ("mask", r"test_graphs\.py:\d+ selects by a mask"),
        ("draw", r"test_graphs\.py:\d+ draws random numbers"),
        ("copy_number", r"test_graphs\.py:\d+ makes a tensor of a number of the host"),
        ("count", "weight.steps changes in each step, but not in place"),
        ("replace", "weight.mean changes in each step, but not in place"),
    ],
)
def test_a_step_that_a_replay_could_not_repeat_runs_as_python_says_and_a_note_says_why(program, reason, recorder):
    expected, weight = Weight(), Weight()
    torch.manual_seed(0)
    results = values(getattr(expected, program), TARGETS)
    torch.manual_seed(0)
    stepper, notes = steps_of(weight)
    assert [each["value"].tolist() for each in stepper.run(getattr(weight, program), TARGETS)] == results
    (note,) = notes
    assert re.search(reason, note)
    assert recorder.recordings == 0
    with pytest.raises(ConfigError, match="learner.graphs is true, but .*" + reason):
        steps_of(weight, True)[0].run(getattr(weight, program), TARGETS)


def test_a_number_that_changes_asks_for_another_recording_and_one_that_always_changes_for_none(recorder):
    expected, weight = Weight(), Weight()
    stepper, notes = steps_of(weight)
    for update in range(12):
        expected.rate = weight.rate = 1.0 / (2 + update)
        stepper.begin_update()
        found = stepper.run(weight.follow, TARGETS[:4])
        assert [each["value"].tolist() for each in found] == [
            expected.follow(each)["value"].tolist() for each in TARGETS[:4]
        ]
    (note,) = notes
    assert "weight.rate, which a recording keeps, changes again and again, now from 0.0909" in note


def test_a_number_that_settles_again_is_recorded_however_often_it_has_changed(recorder):
    weight = Weight()
    stepper, notes = steps_of(weight)
    for update in range(40):
        weight.rate = 1.0 / (2 + update // 2)  # each for two updates
        stepper.begin_update()
        stepper.run(weight.follow, TARGETS[:4])
    assert notes == []


CHANGES = {
    "a number of NumPy": lambda weight: setattr(weight, "rate", np.float32(0.25)),
    "an array": lambda weight: weight.rates.__setitem__(0, 0.25),
    "a number in a closure": lambda weight: setattr(weight, "more", (lambda rate: lambda: rate)(0.25)),
    "another function": lambda weight: setattr(weight, "more", lambda: 0.25 + 0.0),
    "a member of a set": lambda weight: weight.kinds.add("slow"),
    "a parameter that is frozen": lambda weight: weight.parameter.requires_grad_(False),
    "an attribute of its class": lambda weight: setattr(type(weight), "scale", type(weight).scale / 2),
    "an attribute of another class": lambda _: setattr(Scales, "scale", Scales.scale / 2),
    "a global of its module": lambda _: globals().update(scale=scale / 2),
    "a global of another module": lambda _: setattr(SETTINGS, "scale", SETTINGS.scale / 2),
    "a function of its module": lambda _: globals().update(scaled=halved),
    "a member of an object with slots": lambda weight: weight.leaves.leaves.__setitem__("rate", 0.25),
}


SETTINGS = types.ModuleType("settings")
scale = 1.0


class Scales:
    """A number of a class that the weight does not hold."""

    scale = 1.0


def scaled(rate):
    return rate * scale * SETTINGS.scale * Scales.scale


def halved(rate):
    return rate / 2


@pytest.fixture
def scales(monkeypatch):
    """Sets all scales outside of the weight, for a test that changes them."""
    monkeypatch.setattr(SETTINGS, "scale", 1.0, raising=False)
    monkeypatch.setattr(Scales, "scale", 1.0)
    monkeypatch.setattr(Holder, "scale", 1.0)
    monkeypatch.setitem(globals(), "scale", 1.0)
    monkeypatch.setitem(globals(), "scaled", scaled)


class Holder(Weight):
    """A weight whose step depends on numbers of every kind."""

    scale = 1.0

    def __init__(self):
        super().__init__()
        self.rate, self.rates, self.kinds = np.float32(0.5), np.array([0.5]), {"quick"}
        self.parameter, self.leaves = torch.zeros(1, requires_grad=True), Tree({"rate": 0.5})
        self.more = (lambda rate: lambda: rate)(0.5)

    def follow(self, target):
        rate = float(self.rate) * float(self.rates[0]) * self.more() * self.leaves["rate"]
        rate *= self.scale / (len(self.kinds) + self.parameter.requires_grad)
        rate = scaled(rate)
        self.value += rate * (target - self.value)
        return {"value": self.value.clone()}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_between_updates_a_replay_gives_what_python_gives(change, recorder, scales):
    expected, weight = Holder(), Holder()
    stepper, notes = steps_of(weight)
    for _ in range(2):
        stepper.begin_update()
        found = stepper.run(weight.follow, TARGETS[:8])
        assert [each["value"].tolist() for each in found] == values(expected.follow, TARGETS[:8])
        for each in (expected, weight):
            CHANGES[change](each)
    stepper.begin_update()
    found = stepper.run(weight.follow, TARGETS[:8])
    assert [each["value"].tolist() for each in found] == values(expected.follow, TARGETS[:8])
    assert notes == []
    assert recorder.replays > 1


def test_inputs_may_be_lists(recorder):
    weight, inputs = Weight(), [[target, "usual"] for target in TARGETS]
    stepper, notes = steps_of(weight)
    found = stepper.run(lambda drawn: weight.follow(drawn[0]), inputs)
    assert [each["value"].tolist() for each in found] == values(Weight().follow, TARGETS)
    assert (notes, recorder.replays) == ([], 4)


def test_a_recording_that_fails_is_told_and_the_steps_are_taken(recorder, monkeypatch):
    def fail(function):
        raise RuntimeError("CUDA error: operation not permitted\nand more")

    monkeypatch.setattr(recorder, "record", fail)
    expected, weight = Weight(), Weight()
    stepper, notes = steps_of(weight)
    found = stepper.run(weight.follow, TARGETS)
    assert [each["value"].tolist() for each in found] == values(expected.follow, TARGETS)
    assert notes == [
        "gradient steps run without CUDA graphs (learner.graphs): RuntimeError: CUDA error: operation not permitted."
    ]


def test_a_recording_that_fails_half_way_has_taken_no_step(recorder):
    expected, weight = Weight(), Weight()
    fails = iter([*[False] * 9, True])  # the first 8 steps are the warm-up

    def follow(target):
        outputs = weight.follow(target)
        if next(fails, False):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return outputs

    stepper, notes = steps_of(weight)
    told = stepper.run(follow, TARGETS)
    assert [each["value"].tolist() for each in told] == values(expected.follow, TARGETS)
    assert not recorder.records_now
    assert len(notes) == 1


class Allocator:
    """What torch keeps of a recording on a GPU: where allocations go, and how many graphs use that pool."""

    def __init__(self, ends):
        self.pool, self.users, self.ends = None, 0, ends
        self.stream = self.outside = object()

    def install(self, monkeypatch):
        """Puts itself behind the functions of torch."""
        stream = types.SimpleNamespace(device=torch.device("cuda", 0))
        for name, function in {
            "Stream": lambda _: stream,
            "graph_pool_handle": lambda: (0, 1),
            "CUDAGraph": object,
            "current_stream": lambda _: self.stream,
            "set_stream": lambda other: setattr(self, "stream", other),
            "graph": self.graph,
            "memory._cuda_endAllocateToPool": self.end,
            "memory._cuda_releasePool": self.release,
        }.items():
            monkeypatch.setattr(f"torch.cuda.{name}", function)

    @contextlib.contextmanager
    def graph(self, _graph, pool, stream, **_):
        self.pool, self.users, self.stream = pool, self.users + 1, stream
        try:
            yield
        finally:
            if not self.ends:  # as torch: what follows is left undone
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            self.end(0, pool)
            self.users -= 1  # by the graph, as soon as nobody holds it
            self.stream = self.outside

    def end(self, _device, pool):
        if self.pool != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pool = None

    def release(self, _device, _pool):
        self.users -= 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_recording_that_fails_leaves_neither_its_stream_nor_its_pool_in_use(ends, monkeypatch):
    """Whether or not torch can end it itself; the first error is the one that is told."""
    allocator = Allocator(ends)
    allocator.install(monkeypatch)

    def fail():
        assert allocator.pool == (0, 1)
        raise ValueError("half-way")

    with pytest.raises((ValueError, RuntimeError)) as caught:
        CudaRecorder(torch.device("cuda")).record(fail)
    assert "half-way" in str(caught.value if ends else caught.value.__context__)
    assert (allocator.pool, allocator.users, allocator.stream) == (None, 0, allocator.outside)


def test_shapes_that_never_come_again_are_told_once(recorder):
    inputs = [torch.ones(length) for length in range(1, MOST_FORMS + 20)]
    stepper, notes = steps_of(Weight())
    outputs = [stepper.run(lambda each: {"value": each.sum()}, [each]) for each in inputs]
    assert [float(each["value"]) for (each,) in outputs] == [*range(1, MOST_FORMS + 20)]
    assert notes == [
        "gradient steps run without CUDA graphs (learner.graphs): none of 64 shapes of minibatches has come 3 times."
    ]


def test_many_shapes_beside_those_that_come_again_hinder_no_recording(recorder):
    weight = Weight()
    stepper, notes = steps_of(weight)
    stepper.run(weight.follow, TARGETS[:4])
    for length in range(3, MOST_FORMS + 20):
        stepper.run(lambda each: {"value": each.sum()}, [torch.ones(length)])
    stepper.run(weight.follow, TARGETS[:4])
    assert notes == []
    assert recorder.replays == 1  # of four steps; the first four were the warm-up


@pytest.mark.parametrize(("length", "size"), [(400, 400), (399, 400), (376, 400), (375, 375), (1, 25), (410, 425)])
def test_minibatches_are_filled_up_to_few_sizes(length, size):
    assert usual_size(length, 400) == size
