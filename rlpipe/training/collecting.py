"""Collects whole episodes of a policy into a dataset, in the order of their seeds.

Episodes run as those of an evaluation do, block by block: those of a block are in memory, and are stored while the next
one runs. The order of the seeds, and not that of completion, decides what the dataset holds, so it is the same whatever
the number of workers, and however often its collection was interrupted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rlpipe.analysis.evaluation_report import protocol_digest, weights_digest
from rlpipe.collection.actions import ActionSource, CheckpointPolicy
from rlpipe.collection.corrections import Behaviour, Corrected
from rlpipe.collection.evaluator import Request
from rlpipe.collection.seeds import EpisodeKey
from rlpipe.config.plan import Plan
from rlpipe.config.protocol import comparable, protocol
from rlpipe.config.schema import FIRST_TRAINING_SEED
from rlpipe.demonstrations.corrections import EXECUTED, INTERVENED, as_corrected
from rlpipe.demonstrations.dataset import SEEN
from rlpipe.demonstrations.formats.episode import STATE, Dataset, DatasetInfo, Features, Format, Frames, RecordedEpisode
from rlpipe.demonstrations.formats.writing import UNFINISHED, DatasetWriter, open_unfinished
from rlpipe.envs.shared.tasks import label_of
from rlpipe.errors import ConfigError, Fault, RunError
from rlpipe.foreign import begin_notes
from rlpipe.policies.base import Snapshot
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.locks import TemporaryLock
from rlpipe.training.engine import Engine
from rlpipe.training.evaluation import BlockWatch, Progress, run_block, tell_notes
from rlpipe.trajectory import Episode, Recording, SpaceSpec

EPISODES_OF_A_SLOT = 4
"""Episodes that each slot runs in a block. The more, the less its end is waited for, and the more a kill may lose."""
MOST_BYTES = 2**29
"""Bytes of observations that a block may hold in memory, from which on slots run fewer episodes."""
MOST_STEPS = 1000
"""Steps of an episode without a time limit, for that estimate."""
PATIENCE = 200
"""Episodes without a success in a row after which successes are no longer waited for."""


@dataclass(frozen=True)
class Collection:
    """Dataset that was collected.

    Attributes:
        episodes: number of episodes in it.
        steps: of all of them.
        seeds: first and last.
        tried: number of episodes that were run for it since it was begun or continued.
        succeeded: number of these that succeeded; None for a simulator that tells no success.
        features: of its episodes, before they were put into a format.
        interventions: share of the steps that were run in which the expert acted; None without one.
        losses: what the format of the dataset cannot hold, each the end of a sentence that begins with its name.
    """

    episodes: int
    steps: int
    seeds: tuple[int, int]
    tried: int
    succeeded: int | None
    features: Features
    interventions: float | None = None
    losses: Sequence[str] = ()


def check_options(
    policy: str | None, expert: str | Path | None, beta: float | None, aggregate: str | Path | None, only: str | None
) -> None:
    """Raises ConfigError if options of a collection mean nothing, or not together."""
    if only not in (None, "successes"):
        raise ConfigError(f"--only is {only!r}; the only value is successes: leave it out to keep all episodes.")
    if policy == "replay":
        raise ConfigError("--policy is replay, which repeats demonstrations: rlpipe demos CONFIG --replay FILE does.")
    if expert is None and (beta, aggregate) != (None, None):
        raise ConfigError(f"--{'aggregate' if beta is None else 'beta'} is for corrections: name an --expert.")
    if beta is not None and not 0 <= beta <= 1:
        raise ConfigError(f"--beta is {beta:g}; it must be a probability, from 0 to 1.")


def dataset_info(
    config: Plan, policy: str, *, only_successes: bool, rate: float | None = None, earlier: Dataset | None = None
) -> DatasetInfo:
    """Returns the facts of a dataset: its simulator, and how its episodes come about.

    Args:
        config: its ``env.eval`` is the simulator, ``evaluation.first_seed`` the first seed.
        policy: description of what acts, which names its version.
        only_successes: True if other episodes are left out.
        rate: steps a second, in Hz; None for that of the simulator, where its options say it.
        earlier: dataset of earlier rounds, whose episodes come first.
    """
    task, course = config.env.eval, comparable(protocol(config))
    del course["evaluation.episodes"]  # so that a dataset that is not finished may become larger
    options = {key: getattr(task, key) for key in ("control_mode", "reward_mode", *SEEN) if hasattr(task, key)}
    contents = "successes" if only_successes else "episodes"
    description = (
        f"rlpipe collect: {contents} of {policy}, seeds from {config.evaluation.first_seed}, protocol "
        f"{protocol_digest(course)[:12]}"
    )
    if earlier is not None:
        description += f"; after {len(earlier.episodes)} episodes of {earlier.path}: {earlier.info.description}"
    return DatasetInfo(
        getattr(task, "id", "") or task.name, options, rate or getattr(task, "control_freq", None), description
    )


def checkpoint_label(state: Checkpoint) -> str:
    """Returns the description of a checkpoint that acts: its run, its iteration, and its weights."""
    run = state.path.absolute().parent.parent.name
    return f"{run}, iteration {state.meta['iteration']}, weights {weights_digest(state)[:12]}"


def policy_label(name: str, digests: Mapping[str, str]) -> str:
    """Returns the description of a baseline, or of a policy from elsewhere with the digests of its files."""
    return ", ".join([name, *(f"{part} {digest[:12]}" for part, digest in sorted(digests.items()))])


def seed_after(earlier: Dataset) -> int:
    """Returns the seed that follows those of a dataset."""
    return max((entry.seed for entry in earlier.episodes if entry.seed is not None), default=-1) + 1


def check_earlier(earlier: Dataset, info: DatasetInfo, config: Plan) -> None:
    """Checks that episodes of a configuration can follow those of earlier rounds.

    Raises:
        ConfigError: they are unfinished, of another simulator, hold other columns, or began with the same seeds.
    """
    if earlier.version == "unfinished":
        raise ConfigError(f"--aggregate: {earlier.path} is not finished: the command that began it goes on.")
    before = {"task": earlier.info.task, "rate": earlier.info.rate, **earlier.info.options}
    now = {"task": info.task, "rate": info.rate, **info.options}
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"--aggregate: {earlier.path} was made with {name} {before.get(name)}, but now it is {now.get(name)}."
            )
    missing = {"rewards", "terminated", "truncated"} - {*earlier.features.columns}
    missing |= {"states"} if config.eval_facts.states and not earlier.features.states else set()
    if missing:
        raise ConfigError(
            f"--aggregate: {earlier.path} does not hold {', '.join(sorted(missing))}, as what is collected does: begin "
            "with a dataset of rlpipe collect, such as of --policy planner."
        )
    if again := sorted({entry.seed for entry in earlier.episodes} & {*config.evaluation.seeds}, key=str):
        raise ConfigError(f"--seeds: {earlier.path} has an episode with the seed {again[0]}: begin at a later one.")


def corrected(
    label: str,
    make_policy: Callable[[SpaceSpec], Behaviour],
    expert: tuple[str, Callable[[SpaceSpec], ActionSource | CheckpointPolicy]],
    beta: float,
    config: Plan,
    in_chunks: bool,
) -> tuple[str, Callable[[SpaceSpec], Corrected]]:
    """Returns the description of a policy that an expert corrects, and what makes the two for a simulator.

    Args:
        label: description of the policy.
        make_policy: makes it for the spaces of the simulator.
        expert: the same of the expert.
        beta: probability with which the expert acts in a step.
        config: of the policy.
        in_chunks: True if the policy acts as ``config.policy`` says.
    Raises:
        ConfigError: the policy decides for several steps at once.
    """
    name, make_expert = expert
    if in_chunks and config.policy.chunk_size > 1:
        raise ConfigError(
            f"--expert labels each state, but the policy decides for {config.policy.chunk_size} steps at once "
            "(policy.chunk_size), so a chunk would be made of labels of states that the expert itself would not have "
            "come to: correct a policy of single actions."
        )

    def make(spec: SpaceSpec) -> Corrected:
        policy, by_expert = make_policy(spec), make_expert(spec)
        assert isinstance(policy, Snapshot | ActionSource)
        return Corrected(policy, by_expert, beta, config.runner.seed, spec)

    return f"{label}, corrected by {name} with beta {beta:g}", make


@contextmanager
def begun_dataset(
    folder: Path, form: Format, info: DatasetInfo, config: Plan, earlier: Dataset | None = None
) -> Iterator[DatasetWriter]:
    """Begins a dataset, or goes on with one, and keeps other processes from it.

    The episodes of ``earlier`` come first, with the columns of corrections.

    Raises:
        ConfigError: it cannot be written there, is complete, or has more episodes than are asked for.
    """
    folder = folder.absolute()
    with _lock(folder):
        before = [] if earlier is None else [partial(_read_corrected, earlier, n) for n in range(len(earlier.episodes))]
        writer, count = DatasetWriter(folder, form, info, before=before), config.evaluation.episodes
        if writer.complete or len(writer.episodes) > count:
            kind = "is a complete dataset" if writer.complete else f"has more than {count:,}"
            raise ConfigError(
                f"--out: {folder} {kind}, of {len(writer.episodes):,} episodes: name another folder, or remove it."
            )
        try:
            yield writer
        finally:
            writer.release()
            if not writer.episodes:  # what failed before its first episode leaves nothing
                shutil.rmtree(folder / UNFINISHED)
                with suppress(OSError):  # it held something before
                    folder.rmdir()


def _read_corrected(earlier: Dataset, number: int) -> RecordedEpisode:
    return as_corrected(earlier.read(number))


def _lock(folder: Path) -> TemporaryLock:
    try:
        file = folder.with_name(f".{folder.name}.lock")
        return TemporaryLock(file, 0.0, f"--out: {folder} is being written by another process.")
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {folder}: {error}.") from error


class _Order:
    """Order of the episodes: by seed, and those of a seed by task."""

    def __init__(self, config: Plan) -> None:
        self._labels = [label_of(entry) for entry in config.env.eval.tasks]
        self._first = config.evaluation.first_seed
        self.end = (FIRST_TRAINING_SEED - self._first) * max(1, len(self._labels))

    def key(self, number: int) -> EpisodeKey:
        """Returns the task and the seed of an episode."""
        seeds, task = divmod(number, max(1, len(self._labels)))
        return task, self._first + seeds

    def number_of(self, episode: Episode | RecordedEpisode) -> int:
        """Returns the place of an episode."""
        assert episode.seed is not None  # the configuration is checked for that
        task = self._labels.index(episode.task) if self._labels else 0
        return (episode.seed - self._first) * max(1, len(self._labels)) + task


def collect(
    config: Plan,
    make_acting: Callable[[SpaceSpec], Behaviour],
    engine: Engine,
    writer: DatasetWriter,
    progress: Progress,
    *,
    only_successes: bool = False,
) -> Collection:
    """Collects episodes until a dataset has as many as ``evaluation.episodes`` says, and finishes it.

    Args:
        config: says in which simulator, and from which seed on
        make_acting: makes what acts for the spaces of the simulator
        engine: made for the configuration; closed before this function returns
        writer: of the dataset, which may have been begun before; an error leaves it to be continued
        progress: is told how many episodes have ended
        only_successes: leave out all other episodes, and go on with further seeds until there are enough
    Raises:
        ConfigError: successes are asked for, but the simulator tells none.
        RunError: the time for a block was over before all its episodes had ended, or no episode succeeds any more.
    """
    order, missing = _Order(config), config.evaluation.episodes - len(writer.episodes)
    number = first = _next_number(writer, order)
    failures = succeeded = steps = interventions = 0
    faults: list[str] = []
    begin_notes()
    try:
        ready = engine.start_workers(config.schedule, 0)
        if only_successes and not ready.has_success:
            raise no_success_told(config)
        acting = engine.put(make_acting(ready.spec))
        watch, size = BlockWatch(progress, config.evaluation.episodes), _block_size(config, ready.spec)
        with _Storing(writer, ready.spec) as storing:
            while missing > 0:
                watch.before = config.evaluation.episodes - missing
                end = min((number // size + 1) * size, order.end if only_successes else config.evaluation.episodes)
                request = Request({order.key(each) for each in range(number, end)}, whole=True)
                window = run_block(engine, acting, watch, request)
                faults += window.faults
                recordings = sorted(window.recordings, key=lambda each: order.number_of(each.episode))
                for recording in recordings:
                    failures = 0 if recording.episode.success_once else failures + 1
                    succeeded += bool(recording.episode.success_once)
                    if recording.interventions is not None:
                        steps += len(recording.interventions)
                        interventions += int(recording.interventions.sum())
                if only_successes:
                    recordings = [each for each in recordings if each.episode.success_once][:missing]
                storing.store(recordings)
                missing, number = missing - len(recordings), end
                if only_successes and missing and (failures >= PATIENCE or number == order.end):
                    raise _too_few(failures, missing, config, writer)
        tell_notes(ready, faults)
    finally:
        engine.close()
    features = storing.features or open_unfinished(writer.folder).features
    writer.close()
    entries = writer.episodes
    return Collection(
        len(entries), sum(entry.length for entry in entries), (entries[0].seed or 0, entries[-1].seed or 0),
        number - first, succeeded if ready.has_success else None, features, interventions / steps if steps else None,
    )  # fmt: skip


def no_success_told(config: Plan) -> ConfigError:
    """Returns the error of successes that are asked for where none is told."""
    task = config.env.eval
    advice = config.eval_facts.remedy("success") or "leave it out"
    return ConfigError(f"--only is successes, but env.eval ({task.task_name}) does not tell success: {advice}.")


def _too_few(failures: int, missing: int, config: Plan, writer: DatasetWriter) -> RunError:
    """Returns the error of a policy that no longer succeeds."""
    count = config.evaluation.episodes
    return RunError(
        Fault(
            "the policy",
            f"failed in {failures:,} episodes in a row, so {missing:,} of {count:,} successes are missing. The others "
            f"are kept in {writer.folder}: ask for as many with -n, or for all episodes without --only successes",
        )
    )


def _next_number(writer: DatasetWriter, order: _Order) -> int:
    """Returns the number of the episode after the last one of a dataset."""
    if not writer.episodes:
        return 0
    return order.number_of(open_unfinished(writer.folder).read(len(writer.episodes) - 1)) + 1


def _block_size(config: Plan, spec: SpaceSpec) -> int:
    """Returns the number of episodes that run before they are stored."""
    slots: int = min(config.env.eval.total_num_envs, config.evaluation.episodes)
    leaves = [(spec.observation_dim, "float32")] if spec.leaves is None else [
        (leaf.size, leaf.dtype) for leaf in spec.leaves.values()
    ]  # fmt: skip
    moment: int = sum(size * np.dtype(dtype).itemsize for size, dtype in leaves)
    round_of_slots: int = slots * moment * (config.eval_facts.time_limit or MOST_STEPS)
    rounds: int = min(EPISODES_OF_A_SLOT, MOST_BYTES // max(1, round_of_slots))
    return slots * max(1, rounds)


class _Storing:
    """Stores the episodes of a block while the next one runs.

    Attributes:
        features: of the episodes that were stored; None before the first.
    """

    def __init__(self, writer: DatasetWriter, spec: SpaceSpec) -> None:
        self._writer, self._spec = writer, spec
        self._thread = ThreadPoolExecutor(1, "storing")
        self._block: Future[None] | None = None
        self.features: Features | None = None

    def store(self, recordings: Sequence[Recording]) -> None:
        """Begins to store episodes, once those before are stored."""
        self._wait()
        self._block = self._thread.submit(self._store, recordings)

    def _store(self, recordings: Sequence[Recording]) -> None:
        for recording in recordings:
            episode = recorded_episode(recording, self._spec, f"traj_{len(self._writer.episodes)}")
            self._writer.add(episode)
            self.features = episode.features
        self._writer.sync()

    def _wait(self) -> None:
        if self._block is not None:
            self._block.result()

    def __enter__(self) -> _Storing:
        return self

    def __exit__(self, *_: object) -> None:
        with self._thread:  # also after an error: what has been collected is kept
            self._wait()


def recorded_episode(recording: Recording, spec: SpaceSpec, name: str) -> RecordedEpisode:
    """Returns an episode of a simulator as a dataset holds it; the actions are the expert's, if there was one.

    Args:
        recording: the episode.
        spec: spaces of the simulator.
        name: of the episode in the dataset.
    """
    episode, steps = recording.episode, len(recording.actions)
    observations = {STATE if spec.leaves is None else leaf: rows for leaf, rows in recording.observations.items()}
    pictures = {leaf for leaf, rows in observations.items() if rows.ndim == 4 and rows.dtype == np.uint8}
    never, ends = np.zeros(steps, bool), np.arange(steps) == steps - 1
    actions, others = recording.actions.reshape(steps, -1), {}
    if recording.labels is not None and recording.interventions is not None:
        others = {INTERVENED: recording.interventions, EXECUTED: actions}
        actions = recording.labels.reshape(steps, -1)
    return RecordedEpisode(
        name,
        actions,
        {leaf: rows for leaf, rows in observations.items() if leaf not in pictures},
        {leaf: Frames.of(observations[leaf]) for leaf in observations if leaf in pictures},
        recording.rewards.astype(np.float32),
        recording.success,
        seed=episode.seed,
        states=recording.states,
        task=episode.task,
        terminated=ends if episode.terminated else never,
        truncated=ends if episode.truncated else never,
        others=others,
    )
