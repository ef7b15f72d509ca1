"""Reinforcement learning for manipulation on Ray, with metrics that can be trusted.

config = rlpipe.load_config("configs/ppo_push_cube.yaml", ["rollout.num_workers=8"])
result = rlpipe.train(config)                   # on Ray; rlpipe.train(config, local=True) in this process
report = rlpipe.evaluate(result.checkpoint, episodes=400)
policy = rlpipe.load_policy(result.checkpoint)  # action = policy.act(observation)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlpipe.analysis.evaluation_report import EvaluationReport
    from rlpipe.analysis.stress import StressReport
    from rlpipe.analysis.verification import Verification
    from rlpipe.collection.actions import ActionSource
    from rlpipe.collection.corrections import Behaviour
    from rlpipe.config.plan import Plan
    from rlpipe.run.checkpoint import Checkpoint
    from rlpipe.serving.runner import ActingPolicy
    from rlpipe.training.collecting import Collection
    from rlpipe.training.engine import Engine
    from rlpipe.training.interruption import Interruption
    from rlpipe.training.recovery import TrainResult
    from rlpipe.training.until_decided import Decision, Side
    from rlpipe.trajectory import SpaceSpec

__all__ = ["collect", "evaluate", "evaluate_until_decided", "load_config", "load_policy", "stress", "train", "verify"]

_QUIET = ("evaluation.replays=0", "evaluation.videos=0")
"""First overrides of an evaluation, which keeps nothing to watch unless it is asked to."""


def load_config(source: str | Path | dict[str, Any], overrides: Sequence[str] = ()) -> Plan:
    """Reads, completes and checks a configuration. Its keys are attributes, such as ``config.runner.seed``.

    Args:
        source: YAML file, name of a shipped configuration, or the same as a mapping
        overrides: ``key=value`` with full dotted keys
    Raises:
        rlpipe.errors.ConfigError: it is wrong; nothing has been started or written.
    """
    from rlpipe.config.loading import load_config

    return load_config(source, overrides)


def train(
    config: Plan,
    *,
    local: bool = False,
    ray_address: str | None = None,
    resume: str | Path | None = None,
    interruption: Interruption | None = None,
) -> TrainResult:
    """Trains, on Ray or in this process.

    Args:
        config: result of ``load_config``; to resume, the configuration in the run directory
        local: run everything in this process
        ray_address: cluster to join; by default ``RAY_ADDRESS``, else a cluster that this run starts for itself
        resume: run directory to continue from its newest intact checkpoint; None starts a new run, or resumes the one
            that ``runner.auto_resume`` finds
        interruption: request to end, checked after every iteration
    Raises:
        rlpipe.errors.ConfigError: the machine cannot do what is configured, or the run to resume is still running.
        rlpipe.errors.RunError: an actor was lost and cannot be replaced.
    """
    from rlpipe.demonstrations.checks import check_demonstrations, check_steps
    from rlpipe.foreign import begin_notes
    from rlpipe.run.directory import RunDirectory, find_run
    from rlpipe.run.resume import locked_run
    from rlpipe.training import recovery
    from rlpipe.training.checks import check_spaces
    from rlpipe.training.first_weights import with_base_policy

    begin_notes()
    config = with_base_policy(config)
    demonstrations = check_demonstrations(config)
    _check_machine(config, local, ray_address)
    spec = check_spaces(config)
    if demonstrations is not None:
        check_steps(config, demonstrations, spec)
    with locked_run(config, None if resume is None else find_run(Path(resume))) as run:
        if run is not None:
            RunDirectory.existing(run).check()
        engine, write_report = _engine(config, local, ray_address), _write_report if config.runner.report else None
        return recovery.train(config, engine, interruption=interruption, resume=run, write_report=write_report)


def evaluate(
    checkpoint: str | Path,
    *,
    policy: str | None = None,
    best: bool = False,
    episodes: int | None = None,
    replays: int | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    ray_address: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> EvaluationReport:
    """Evaluates a checkpoint, or the newest one of a run, on held-out seeds; or a baseline or a policy from elsewhere.

    Writes a record into the checkpoint's run directory (``evaluations/<n>.json``), and changes nothing else. The record
    of a baseline of a configuration goes to ``floors/<n>.json`` in ``runner.logger.log_path``. Replays go to
    ``replays/`` of the run or of ``floors``.

    Args:
        checkpoint: checkpoint file or run directory, of which a folder of runs means the newest; with ``policy``, run
            directory or configuration (YAML file, or name of a shipped one)
        policy: policy to evaluate instead of a checkpoint: a baseline (``random``, ``zero`` or ``replay``), or a policy
            from elsewhere (``ws://HOST:PORT``, ``model.onnx``, ``model.zip`` of Stable-Baselines3, or
            ``package.module:function`` or class)
        best: in a run directory, take the checkpoint with the best evaluation instead of the newest
        episodes: number of episodes; None takes the configuration's
        replays: keep replays of so many first episodes and failures, and of the best and the worst; None keeps none,
            unless an override of ``evaluation.replays`` does
        overrides: ``key=value`` on the configuration it was trained with, or the one that is named
        local: as for ``train``
        ray_address: as for ``train``
        progress: called about once a second with the number of episodes that have ended, of all, and the seconds so far
    Raises:
        rlpipe.errors.ConfigError: there is no such checkpoint, or an override is wrong.
        rlpipe.errors.RunError: not all episodes had ended after ``evaluation.timeout``.
    """
    from dataclasses import replace

    from rlpipe.analysis.evaluation_report import folder_of
    from rlpipe.errors import command_line
    from rlpipe.training import evaluation

    path = _named(checkpoint)
    changes = _changes_of(overrides, episodes, replays)
    progress = progress or (lambda *_: None)
    if policy is not None:
        return _evaluate_source(path, policy, best, changes, local, ray_address, progress)
    state, config = _checkpoint(path, best, changes)
    _check_machine(config, local, ray_address)
    report = evaluation.evaluate(config, state, _engine(config.without_learner(), local, ray_address), progress)
    command = command_line("evaluate", state.path, *changes[len(_QUIET) :], *["--local"] * local)
    return replace(report, command=command).recorded(folder_of(state.path))


def evaluate_until_decided(
    first: str | Path,
    against: str | Path,
    *,
    margin: float | None = None,
    best: bool = False,
    episodes: int | None = None,
    replays: int | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    ray_address: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Decision:
    """Evaluates two policies in the same episodes, and looks after every pair whether one has the higher success.

    Ends as soon as that is decided, with at most 5 % of wrong decisions between equal policies however often one looks.
    Writes a record of each as ``evaluate`` does; they hold all episodes that were run.

    Args:
        first: checkpoint file or run directory, as for ``evaluate``
        against: likewise, or a policy as for ``evaluate``: ``random``, ``zero``, or one from elsewhere
        margin: difference of the success rates within which the policies count as equal, which ends it too
        best: in run directories, take the checkpoints with the best evaluation
        episodes: number of episodes of each at most; None takes that of the first one's configuration
        replays: as for ``evaluate``
        overrides: ``key=value`` on the configurations of both
        local: as for ``train``
        ray_address: as for ``train``
        progress: as for ``evaluate``, of the episodes of both
    Raises:
        rlpipe.errors.ConfigError: there is no such checkpoint, they do not meet in the same episodes, or their task
            tells no success.
        rlpipe.errors.RunError: not all episodes had ended after ``evaluation.timeout``.
    """
    from dataclasses import replace

    from rlpipe.analysis.evaluation_report import folder_of
    from rlpipe.errors import ConfigError, command_line
    from rlpipe.serving.external.naming import digests_of, is_external
    from rlpipe.training import until_decided

    if margin is not None and not 0 < margin < 1:
        raise ConfigError(f"--margin is {margin}; it must be above 0 and below 1: a difference of success rates.")
    changes = _changes_of(overrides, episodes, replays)
    options = [*changes[len(_QUIET) :], *["--local"] * local]
    ours, theirs = _sides(first, str(against), best, changes)
    for config in (ours.config, theirs.config):
        _check_machine(config, local, ray_address)
    engine = _engine(until_decided.shared_workers(ours.config).without_learner(), local, ray_address)
    decision = until_decided.evaluate_until_decided(ours, theirs, engine, progress or (lambda *_: None), margin=margin)
    states = ours.state, theirs.state or ours.state
    folders = [folder_of(state.path) for state in states if state is not None]
    options += [] if margin is None else ["--margin", str(margin)]
    names = [against if side.state is None else side.state.path for side in (ours, theirs)]
    command = command_line("evaluate", names[0], "--against", names[1], "--until-decided", *options)
    digests: list[dict[str, str]] = [{}, digests_of(ours.config, str(against)) if is_external(str(against)) else {}]
    reports = [
        replace(report, command=command, policy_sha256=files).recorded(folder)
        for report, folder, files in zip(decision.reports, folders, digests, strict=True)
    ]
    return replace(decision, reports=(reports[0], reports[1]))


def stress(
    checkpoint: str | Path,
    *,
    policy: str | None = None,
    best: bool = False,
    axes: str | None = None,
    levels: int = 5,
    episodes: int = 200,
    bound: float | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    ray_address: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> StressReport:
    """Evaluates a policy in the same episodes without variations, with each axis alone at its levels, and with all axes
    together.

    Writes a record into the run directory (``stress/<n>.json``), or for a configuration into
    ``runner.logger.log_path``, and replays of an episode that a variation breaks, clean and varied.

    Args:
        checkpoint: as for ``evaluate``
        policy: as for ``evaluate``
        best: as for ``evaluate``
        axes: axes to vary, each perhaps with its range: ``mass=0.5:3,action_latency``; None for all of the task
        levels: number of levels of each axis alone, the ends of its range among them
        episodes: number of episodes of each arm
        bound: success rate below which a level is too much; None for half of that without variations
        overrides: as for ``evaluate``
        local: as for ``train``
        ray_address: as for ``train``
        progress: as for ``evaluate``, of the episodes of all arms
    Raises:
        rlpipe.errors.ConfigError: there is no such checkpoint or axis, or the task tells no success.
        rlpipe.errors.RunError: not all episodes of an arm had ended after ``evaluation.timeout``.
    """
    from dataclasses import replace

    from rlpipe.analysis.stress import STRESS, recorded
    from rlpipe.errors import ConfigError, command_line
    from rlpipe.training import stress as testing
    from rlpipe.training.until_decided import Side, shared_workers

    if change := next((each for each in overrides if each.startswith("env.eval.variations")), None):
        raise ConfigError(f"{change} chooses variations, but rlpipe stress does so itself: name them with --axes.")
    if bound is not None and not 0 < bound <= 1:
        raise ConfigError(f"--bound is {bound}; it must be above 0 and at most 1: a success rate.")
    path, changes = _named(checkpoint), [*_changes_of(overrides, episodes, None), "env.eval.variations={}"]
    if policy is None:
        state, config = _checkpoint(path, best, changes)
        folder = state.path.resolve().parent.parent
        run = folder if (folder / "run.json").is_file() else None
        side = Side(str(state.path), config, state)
    else:
        run, config, make_source, _ = _settings_of_policy(path, policy, best, changes)
        side = Side(policy, config, make_source=make_source)
    side, stressed = testing.on_axes(side, axes, levels)
    config = side.config
    _check_machine(config, local, ray_address)
    engine = _engine(shared_workers(config).without_learner(), local, ray_address)
    report, replays, scenes = testing.stress(side, stressed, engine, progress or (lambda *_: None), bound=bound)
    options = [option for name, value in (("policy", policy), ("axes", axes), ("bound", bound)) if value is not None
               for option in (f"--{name}", value)]  # fmt: skip
    options += ["--levels", levels, "--episodes", episodes, *overrides, *["--local"] * local]
    named = path if policy is not None else state.path
    command = command_line("stress", named, *options)
    keep = run is not None or policy is not None
    place = (run or Path(config.runner.logger.log_path)) / STRESS if keep else None
    return recorded(replace(report, command=command), place, replays, scenes)


def collect(
    source: str | Path,
    out: str | Path,
    *,
    count: int = 200,
    format: str = "maniskill",  # noqa: A002 - as the command calls it
    policy: str | None = None,
    expert: str | Path | None = None,
    beta: float | None = None,
    aggregate: str | Path | None = None,
    best: bool = False,
    first_seed: int | None = None,
    only: str | None = None,
    rate: float | None = None,
    overrides: Sequence[str] = (),
    local: bool = False,
    ray_address: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Collection:
    """Collects whole episodes of a policy into a dataset, in the order of their seeds.

    They are what an evaluation with these seeds runs, in the simulator ``env.eval``. A dataset that is not finished is
    continued; the number of workers does not change it.

    Args:
        source: checkpoint file or run directory, as for ``evaluate``; with ``policy``, run directory or configuration
        out: folder of the dataset, which is new, or was begun by the same call
        count: number of episodes
        format: name of the format of the dataset
        policy: policy to collect from instead of a checkpoint, as for ``evaluate``: ``random``, ``zero``, or one from
            elsewhere
        expert: expert that labels each state that the policy visits, so that cloning from the dataset is DAgger:
            ``planner``, which some simulators have, a policy from elsewhere, a checkpoint or a run
        beta: probability with which the expert acts in a step; None for 0
        aggregate: dataset of earlier rounds, whose episodes come first
        best: in a run directory, take the checkpoint with the best evaluation instead of the newest
        first_seed: seed of the first episode; the others follow by one. None for 0, or after those of ``aggregate``
        only: ``successes`` leaves out episodes without success, and goes on until there are enough with; None keeps all
        rate: steps a second, in Hz, for formats that need it; None for that of the simulator, where its options say it
        overrides: ``key=value`` on the configuration it was trained with, or the one that is named
        local: as for ``train``
        ray_address: as for ``train``
        progress: as for ``evaluate``
    Raises:
        rlpipe.errors.ConfigError: there is no such checkpoint, an option is wrong, or the folder holds something else.
        rlpipe.errors.RunError: not all episodes of a block had ended after ``evaluation.timeout``, or none succeeds.
    """
    from dataclasses import replace

    from rlpipe.collection.baselines import acting_config
    from rlpipe.demonstrations.formats.registry import format_called, open_dataset
    from rlpipe.training import collecting

    collecting.check_options(policy, expert, beta, aggregate, only)
    form, path = format_called(format, "--format"), _named(source)
    earlier = None if aggregate is None else open_dataset(Path(aggregate), "--aggregate")
    first_seed = first_seed if first_seed is not None else 0 if earlier is None else collecting.seed_after(earlier)
    changes = [*_QUIET, *overrides, f"evaluation.episodes={count}", f"evaluation.first_seed={first_seed}"]
    make_acting: Callable[[SpaceSpec], Behaviour]
    if policy is None:
        state, config = _checkpoint(path, best, changes)
        label, acting, make_acting = collecting.checkpoint_label(state), config, lambda _: state.policy
    else:
        _, config, make_acting, digests = _settings_of_policy(path, policy, best, changes)
        label, acting = collecting.policy_label(policy, digests), acting_config(config)
    if expert is not None:
        by_expert = _expert(str(expert), config, changes)
        label, make_acting = collecting.corrected(label, make_acting, by_expert, beta or 0.0, config, policy is None)
    _check_machine(config, local, ray_address)
    info = collecting.dataset_info(config, label, only_successes=only is not None, rate=rate, earlier=earlier)
    if earlier is not None:
        collecting.check_earlier(earlier, info, config)
    with collecting.begun_dataset(Path(out), form, info, config, earlier) as writer:
        engine = _engine(acting.without_learner(), local, ray_address)
        collection = collecting.collect(
            acting, make_acting, engine, writer, progress or (lambda *_: None), only_successes=only is not None
        )
    return replace(collection, losses=form.losses(info, collection.features))


def _expert(name: str, config: Plan, changes: Sequence[str]) -> tuple[str, Callable[[SpaceSpec], Any]]:
    """Returns the description of an expert, and what makes it for the spaces of the simulator of a configuration.

    Raises:
        ConfigError: there is none of that name, or it is for another simulator.
    """
    from rlpipe.collection.actions import CheckpointPolicy
    from rlpipe.collection.evaluator import check_same_spaces
    from rlpipe.serving.external.naming import digests_of, external_source, is_external
    from rlpipe.training import collecting
    from rlpipe.training.until_decided import Side, check_alike

    if is_external(name):
        return collecting.policy_label(name, digests_of(config, name)), external_source(config, name, "--expert")
    state, trained_with = _checkpoint(_named(name), False, changes, "--expert")
    check_alike(Side("the policy", config), Side(f"--expert {name}", trained_with))

    def make(spec: SpaceSpec) -> CheckpointPolicy:
        spaces = state.spaces or spec
        check_same_spaces(f"the simulator of --expert {name}", spec, spaces)
        return CheckpointPolicy(str(state.path), trained_with, spaces, state.policy)

    return collecting.checkpoint_label(state), make


def load_policy(
    path: str | Path, *, best: bool = False, deterministic: bool | None = None, seed: int = 0
) -> ActingPolicy:
    """Loads a trained policy, to act with it: ``action = policy.act(observation)``, and ``policy.reset()`` where an
    episode begins. Starts no simulator and no Ray.

    Args:
        path: run directory, which means its newest whole checkpoint, checkpoint file, or folder of an export
        best: in a run directory, take the checkpoint with the best evaluation instead of the newest
        deterministic: take the most likely actions; None does what the evaluations of its run did
        seed: where actions are sampled, seed of the first episode; with that of an evaluated episode, the noise is the
            same as there
    Raises:
        rlpipe.errors.ConfigError: there is no such policy, or this machine has not what it is made of.
    """
    from rlpipe.serving.loading import load_policy

    return load_policy(Path(path), best=best, deterministic=deterministic, seed=seed)


def verify(
    record: str | Path,
    *,
    policy: str | Path | None = None,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    episodes: int = 60,
    seed: int | None = None,
    local: bool = False,
    ray_address: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Verification:
    """Verifies the record of an evaluation: checks it by itself, simulates some of its episodes again, and compares.
    Writes nothing.

    A record may come from anywhere, so it does not choose what is opened and run: a policy from elsewhere has to be
    named. Without it, the record is only checked by itself.

    Args:
        record: file that ``evaluate`` wrote
        policy: policy of the record: one from elsewhere, as for ``evaluate``, or a checkpoint or its run, if that is
            neither beside the record, nor in its run, nor where it was; None takes the baseline or the checkpoint
        config: for a baseline or a policy from elsewhere: run directory or configuration with its simulator; None takes
            the run in which the record lies, or else the record's own protocol, as far as that names no code
        overrides: ``key=value`` on ``config``
        episodes: number of episodes to draw and simulate again; all of a smaller record
        seed: seed of the draw, to repeat it; None takes one that nobody can know before
        local: as for ``train``
        ray_address: as for ``train``
        progress: as for ``evaluate``
    Raises:
        rlpipe.errors.ConfigError: it is no record, or cannot be simulated here.
        rlpipe.errors.RunError: not all episodes had ended after ``evaluation.timeout``.
    """
    from rlpipe.analysis.verification import Record
    from rlpipe.errors import ConfigError
    from rlpipe.serving.external.naming import digests_of, external_source
    from rlpipe.training import verification

    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1.")
    if overrides and config is None:
        raise ConfigError(f"{overrides[0]} changes a configuration: name that of the record's simulator with --config.")
    plan = None if config is None else _settings(_named(config), [*_QUIET, *overrides])[1]
    reader = verification.Reader(episodes, seed, None if policy is None else str(policy), plan)

    def make_engine(acting: Plan) -> Engine:
        _check_machine(acting, local, ray_address)
        return _engine(acting, local, ray_address)

    elsewhere = verification.Opener(external_source, digests_of)
    return verification.verify(Record.read(Path(record)), reader, elsewhere, make_engine, progress or (lambda *_: None))


def _named(path: str | Path) -> Path:
    """Returns what a user names: a run directory, of which a folder of runs means the newest, a file, or the name of a
    shipped configuration."""
    from rlpipe import files
    from rlpipe.config import shipped
    from rlpipe.run.directory import find_run

    target = Path(path) if str(path) in shipped.names() else find_run(Path(path))
    files.kind_of(target)
    return target


def _changes_of(overrides: Sequence[str], episodes: int | None, replays: int | None) -> list[str]:
    """Returns the overrides of an evaluation, which keeps no replays and no videos unless it is asked for them."""
    changes = [*_QUIET, *overrides]
    changes += [] if episodes is None else [f"evaluation.episodes={episodes}"]
    return changes + ([] if replays is None else [f"evaluation.replays={replays}"])


def _checkpoint(path: Path, best: bool, changes: Sequence[str], option: str = "--policy") -> tuple[Checkpoint, Plan]:
    """Reads a checkpoint, as of ``_named``, and the configuration that it was trained with, with changes; ``option`` of
    the command names a policy without one."""
    from rlpipe.config import shipped
    from rlpipe.config.loading import load_config
    from rlpipe.config.tree import from_yaml
    from rlpipe.errors import ConfigError
    from rlpipe.run.checkpoint import find_checkpoint

    if str(path) in shipped.names() or (path.suffix in (".yaml", ".yml") and path.is_file()):
        raise ConfigError(
            f"{path} is a configuration, which has learnt nothing: name a run that was trained with it, or "
            f"evaluate a policy that has learnt nothing, such as with {option} random."
        )
    state, trained_with = find_checkpoint(path, best)
    return state, load_config(from_yaml(trained_with), changes)


def _sides(first: str | Path, against: str, best: bool, changes: Sequence[str]) -> tuple[Side, Side]:
    """Reads the two policies of ``evaluate_until_decided``: a checkpoint, and another one, a baseline or a policy from
    elsewhere, in the episodes of the first."""
    from rlpipe.serving.external.naming import external_source, is_external
    from rlpipe.training.evaluation import baseline_source
    from rlpipe.training.until_decided import Side, check_alike

    state, config = _checkpoint(_named(first), best, changes)
    ours = Side(str(first), config, state)
    if (is_baseline := against in ("random", "zero")) or is_external(against):
        make_source = (baseline_source if is_baseline else external_source)(config, against, "--against")
        return ours, Side(against, config, make_source=make_source)
    quota = config.evaluation
    same_episodes = [f"evaluation.episodes={quota.episodes}", f"evaluation.first_seed={quota.first_seed}"]
    state, config = _checkpoint(_named(against), best, [*changes, *same_episodes], "--against")
    theirs = Side(against, config, state)
    check_alike(ours, theirs)
    return ours, theirs


def _evaluate_source(
    source: Path,
    policy: str,
    best: bool,
    overrides: Sequence[str],
    local: bool,
    ray_address: str | None,
    progress: Callable[[int, int, float], None],
) -> EvaluationReport:
    """Evaluates a baseline, or a policy from elsewhere, under the protocol of a run or a configuration, and writes its
    record."""
    from dataclasses import replace

    from rlpipe.analysis.evaluation_report import BASELINES, EVALUATIONS
    from rlpipe.errors import command_line
    from rlpipe.training import evaluation

    run, config, make_source, digests = _settings_of_policy(source, policy, best, overrides)
    _check_machine(config, local, ray_address)
    report = evaluation.evaluate_source(
        config, policy, make_source, lambda acting: _engine(acting.without_learner(), local, ray_address), progress
    )
    folder = Path(config.runner.logger.log_path, BASELINES) if run is None else run / EVALUATIONS
    command = command_line("evaluate", source, "--policy", policy, *overrides[len(_QUIET) :], *["--local"] * local)
    return replace(report, command=command, policy_sha256=digests).recorded(folder.resolve())


def _settings_of_policy(
    source: Path, policy: str, best: bool, overrides: Sequence[str]
) -> tuple[Path | None, Plan, Callable[[SpaceSpec], ActionSource], dict[str, str]]:
    """Reads the settings in which a baseline, or a policy from elsewhere, acts, as ``_settings`` does; returns what
    makes it, and the digests of its files, as well."""
    from rlpipe.config.protocol import BASELINE_NAMES
    from rlpipe.demonstrations.checks import check_replay
    from rlpipe.errors import ConfigError
    from rlpipe.serving.external.naming import digests_of, external_source
    from rlpipe.training import evaluation
    from rlpipe.training.verification import demonstrations_digest

    if best:
        raise ConfigError(f"--best names a checkpoint, but --policy {policy} needs none: leave one of them out.")
    if source.suffix == ".npz":
        raise ConfigError(f"{source} is a checkpoint, but --policy {policy} needs none: name a run or a configuration.")
    run, config = _settings(source, overrides)
    if policy == "replay":
        check_replay(config)
    is_baseline = policy in BASELINE_NAMES
    make_source = (evaluation.baseline_source if is_baseline else external_source)(config, policy)
    digests = (demonstrations_digest if is_baseline else digests_of)(config, policy)
    return run, config, make_source, digests


def _settings(source: Path, overrides: Sequence[str]) -> tuple[Path | None, Plan]:
    """Reads the configuration of a run directory, or a configuration, as of ``_named``, with changes; returns the run
    directory, if it is one, as well."""
    from rlpipe.config import shipped
    from rlpipe.config.loading import load_config
    from rlpipe.run.directory import RunDirectory

    run = RunDirectory.existing(source).path if source.is_dir() and str(source) not in shipped.names() else None
    return run, load_config(source if run is None else run / "config.yaml", overrides)


def _check_machine(config: Plan, local: bool, ray_address: str | None) -> None:
    """Checks this machine, unless the run joins a cluster: its workers go where there may be other devices."""
    from rlpipe.distributed.process_template import joins_cluster
    from rlpipe.training.checks import check_machine

    if local or not joins_cluster(ray_address):
        check_machine(config)


def _write_report(runs: Sequence[Path]) -> None:
    """Writes the report of a run that has ended. Loads what draws it only then: no run starts later for it."""
    from rlpipe.report.pages import write

    write(runs)


def _engine(config: Plan, local: bool, ray_address: str | None) -> Engine:
    if local:
        from rlpipe.training.local import LocalEngine

        return LocalEngine(config)
    from rlpipe.distributed.engine import RayEngine

    return RayEngine(config, ray_address)
