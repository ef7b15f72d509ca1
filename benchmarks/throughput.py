"""Compares the speed of rlpipe with the simulator's limits and with other libraries.

    python benchmarks/throughput.py                              # three tasks, three rounds, every installed peer
    python benchmarks/throughput.py --tasks PushCube-v1 --rounds 1 --peers sb3 --json throughput.json
    python benchmarks/throughput.py --time-to success=0.5        # also: seconds to that training success

Contenders, all on the same ManiSkill tasks with state observations:

- stock limit: one process per core steps the environments that ``gymnasium.make`` returns, with random NumPy actions
  under ``inference_mode``, and resets them at the task's own horizon;
- batched limit: one process per core steps the simulator of rlpipe's rollout workers, also with random actions;
- collection alone: rlpipe's rollout workers on Ray, with the policy and without learning;
- end to end: PPO with each of ``--pipelines`` (``runner.pipeline``);
- peers: Stable-Baselines3, TorchRL, RLlib and Sample Factory, where ``benchmarks/peers/install.py`` has installed them.

All learn with the same network (separate actor and critic, 3 x 256, tanh), batch (3,200 steps), epochs (8) and
minibatches (8). They run in turn, for several rounds. While throughput is measured, the learning rate is 0: every
update is computed, but the policy keeps acting at random. An arm that has learnt to touch things makes each step of
the physics more expensive and would blur the comparison. The first iterations of each round are left out. Machines are
noisy: trust the ratios to the stock limit, which is measured before and after each contender, more than the rates.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks import machine
from benchmarks.peers import task as shared
from benchmarks.speed import ours, peers, report
from benchmarks.speed.limits import Limit, batched, stock

PACKAGES = ("rlpipe", "ray", "torch", "numpy", "gymnasium", "mani_skill", "sapien")
LEARNED = "PushCube-v1"
"""Task of ``--time-to``, under dense reward."""
LEARNING_ITERATIONS = 400
Measured = dict[str, Any]
Learn = Callable[[float, int], Measured]
"""Learns until a target success rate, with a seed. Returns ``seconds_to_success``."""


@dataclass(frozen=True)
class Contender:
    """Something whose speed is measured.

    Attributes:
        name: name in the tables.
        measure: by task, returns ``rate`` or ``end_to_end`` in steps per second; ``ratio`` if it measures that itself.
        learn: how it learns; None if it does not.
    """

    name: str
    measure: Callable[[str], Measured]
    learn: Learn | None = None


def pipelines(asked: list[str], console: Console) -> list[str | None]:
    """Values of ``runner.pipeline`` to measure; None leaves the key alone."""
    chosen = [pipeline for pipeline in asked if pipeline]
    if chosen and not ours.has_pipelines():
        console.print("This version of rlpipe has no runner.pipeline: its one loop is measured.")
        return [None]
    return list(chosen) or [None]


def measure_collection(task: str) -> Measured:
    """Measures collection alone, in a process of its own."""
    return machine.call([sys.executable, "-m", "benchmarks.speed.collection", task])


def our_contender(pipeline: str | None, iterations: int) -> Contender:
    """Whole runs of rlpipe with one pipeline."""
    return Contender(
        "rlpipe, end to end" if pipeline is None else f"rlpipe, end to end, {pipeline}",
        partial(ours.run, pipeline=pipeline, iterations=iterations),
        partial(ours.seconds_to_success, LEARNED, pipeline, LEARNING_ITERATIONS),
    )


def peer_contender(peer: str, iterations: int) -> Contender:
    """Whole runs of another library."""
    return Contender(
        peers.NAMES[peer],
        partial(peers.run, peer, iterations=iterations),
        partial(peers.run, peer, LEARNED, LEARNING_ITERATIONS),
    )


def contenders(options: argparse.Namespace, console: Console) -> tuple[list[Contender], dict[str, str]]:
    """Contenders that start processes of their own, and the reasons why others are missing, by name."""
    asked = peers.CHOICES[options.peers]
    installed = [peer for peer in asked if peers.python_of(peer) is not None]
    found = [
        Contender("rlpipe, collection alone", measure_collection),
        *(our_contender(pipeline, options.iterations) for pipeline in pipelines(options.pipelines, console)),
        *(peer_contender(peer, options.peer_iterations) for peer in installed),
    ]
    missing = {
        peers.NAMES[peer]: f"not installed: python benchmarks/peers/install.py {peer}"
        for peer in asked
        if peer not in installed
    }
    return found, missing


def compare(task: str, found: list[Contender], options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measures all contenders on a task, in turn. Returns their summaries by name, and ``failed`` with reasons."""
    limit, own_limit = Limit(stock, task), Limit(batched, task)
    limits = [Contender("batched limit", lambda _task: {"rate": own_limit.rate(options.seconds)})]
    rounds: dict[str, list[Measured]] = {report.STOCK: []}
    failed: dict[str, str] = {}
    limit.rate(2.0)
    own_limit.rate(2.0)
    for index in range(options.rounds):
        before = limit.rate(options.seconds)
        rounds[report.STOCK].append({"rate": before, "ratio": 1.0})
        for contender in [*limits, *found]:
            if contender.name in failed:
                continue
            try:
                measured = contender.measure(task)
            except RuntimeError as error:
                failed[contender.name] = str(error)
                console.print(f"{task}: {contender.name}: {error}", markup=False)
                continue
            after = limit.rate(options.seconds)  # beside it, so that a drift of the machine cancels
            measured.setdefault("rate", measured.pop("end_to_end", math.nan))
            measured.setdefault("ratio", measured["rate"] / statistics.mean((before, after)))
            before = after
            rounds.setdefault(contender.name, []).append(measured)
            console.print(
                f"{task}, round {index + 1}: {contender.name} {measured['rate']:,.0f} steps/s, "
                f"{measured['ratio']:.2f} of the stock limit"
            )
    limit.close()
    own_limit.close()
    return {"contenders": {name: report.summarize(each) for name, each in rounds.items()}, "failed": failed}


def learn(found: list[Contender], target: float, rounds: int, console: Console) -> dict[str, list[float | None]]:
    """Seconds that each contender takes to a training success, with one seed for each round."""
    seconds: dict[str, list[float | None]] = {}
    for seed in range(rounds):
        for contender in found:
            if contender.learn is None:
                continue
            try:
                reached = contender.learn(target, seed).get("seconds_to_success")
            except RuntimeError as error:
                console.print(f"{contender.name}: {error}", markup=False)
                continue
            seconds.setdefault(contender.name, []).append(reached)
            told = "not reached" if reached is None else f"{reached:.0f} s"
            console.print(f"{LEARNED}, success {target:g}, seed {seed}: {contender.name}: {told}")
    return seconds


def success_target(text: str) -> float:
    """Target of ``--time-to success=TARGET``."""
    name, _, value = text.partition("=")
    if name != "success":
        raise argparse.ArgumentTypeError(f"{text!r} is not success=TARGET, such as success=0.5")
    return float(value)


def parse() -> argparse.Namespace:
    """Parses the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=shared.CONTROL_MODES, default=list(shared.CONTROL_MODES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements there")
    parser.add_argument("--peers", choices=peers.CHOICES, default="all")
    parser.add_argument("--pipelines", nargs="*", default=["sync", "ahead", "stream"], metavar="PIPELINE",
                        help="values of runner.pipeline; none: as configured by default")  # fmt: skip
    parser.add_argument("--time-to", type=success_target, metavar="success=TARGET",
                        help=f"also learn {LEARNED} until training has this success, once for each round")  # fmt: skip
    parser.add_argument("--iterations", type=int, default=9, help="of rlpipe in each round, at least 5")
    parser.add_argument("--peer-iterations", type=int, default=5, help="of a peer in each round, at least 3")
    parser.add_argument("--seconds", type=float, default=8.0, help="that each measurement of a limit takes")
    options = parser.parse_args()
    if options.iterations < 5 or options.peer_iterations < 3 or options.rounds < 1:
        parser.error("too few iterations or rounds: the first iterations and the last are left out")
    return options


def main() -> None:
    """Runs the rounds, prints the tables, and writes the JSON after each task."""
    options = parse()
    console = Console(highlight=False, width=110)
    found, missing = contenders(options, console)
    result: dict[str, Any] = {
        "machine": machine.describe(*PACKAGES),
        "settings": {
            "steps": shared.STEPS, "epochs": shared.EPOCHS, "minibatches": shared.MINIBATCHES,
            "environments": shared.ENVS, "hidden": list(shared.HIDDEN), "rounds": options.rounds,
            "control_modes": {task: shared.CONTROL_MODES[task] for task in options.tasks},
        },
        "missing": missing,
        "tasks": {},
    }  # fmt: skip
    console.print(machine.sentence(result["machine"]))
    for name, reason in missing.items():
        console.print(f"{name}: {reason}")
    for task in options.tasks:
        result["tasks"][task] = compare(task, found, options, console)
        measured = result["tasks"][task]["contenders"]
        console.print(report.speed_table(task, measured))
        if (table := report.time_table(measured)) is not None:
            console.print(table)
        machine.write(options.json, result)
    if options.time_to is not None:
        seconds = learn(found, options.time_to, options.rounds, console)
        result["seconds_to_success"] = {"task": LEARNED, "target": options.time_to, "contenders": seconds}
        console.print(report.success_table(options.time_to, seconds))
        machine.write(options.json, result)


if __name__ == "__main__":
    main()
