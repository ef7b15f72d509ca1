"""Collection without learning, through Ray, in turn with the simulator's limit.

    python -m benchmarks.speed.collection PushCube-v1

Both stay ready and take turns of a few seconds, so that the machine's drift affects them alike. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from benchmarks.peers import task as shared
from benchmarks.speed import ours
from benchmarks.speed.limits import Limit, stock


def main() -> None:
    """Measures and prints."""
    from rlpipe.config.loading import load_config
    from rlpipe.distributed.engine import RayEngine
    from rlpipe.policies.base import NoWeights, Snapshot

    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=shared.CONTROL_MODES)
    parser.add_argument("--pairs", type=int, default=6)
    options = parser.parse_args()
    limit = Limit(stock, options.task)
    config = load_config(ours.configuration(options.task))
    engine = RayEngine(config)
    engine.start_workers(config.schedule, 0)

    def collect(fragments: int) -> float:
        began = time.perf_counter()
        for collection in [engine.collect(Snapshot(0, NoWeights.FROM_SEED), 0) for _ in range(fragments)]:
            engine.gather(collection)
        return shared.STEPS * fragments / (time.perf_counter() - began)

    collect(1)
    limit.rate(2.0)
    pairs = [(limit.rate(4.0), collect(2)) for _ in range(options.pairs)]
    print(
        json.dumps(
            {
                "rate": statistics.median(rate for _, rate in pairs),
                "ratio": statistics.median(rate / beside for beside, rate in pairs),
            }
        ),
        flush=True,
    )
    engine.close()
    limit.close()


if __name__ == "__main__":
    main()
