"""``rlpipe resize RUN PROCESSES``"""

from __future__ import annotations

from typing import Annotated

import typer

from rlpipe.cli import arguments


def resize(
    run: arguments.Run,
    processes: Annotated[str, typer.Argument(help="Most processes to take, or all: as many as there is room for.")],
) -> None:
    """Ask a run whose processes may come and go (rollout.min_processes) to take fewer or more for its workers.

    The run does so before its next collection.
    """
    from rlpipe.config.fields import whole_number
    from rlpipe.config.loading import load_config
    from rlpipe.errors import ConfigError
    from rlpipe.run.directory import RunDirectory

    directory = RunDirectory.existing(run)
    rollout = load_config(directory.path / "config.yaml").rollout
    if rollout.min_processes is None:
        raise ConfigError(
            f"the processes of {run} do not change: it was started without rollout.min_processes "
            "(rollout.num_workers={min: ..., max: ...})."
        )
    number = None if processes == "all" else whole_number(processes, "PROCESSES")
    if number is not None and not rollout.min_processes <= number <= int(rollout.num_workers):
        raise ConfigError(
            f"PROCESSES is {number}; this run takes {rollout.min_processes} (rollout.min_processes) to "
            f"{rollout.num_workers} (rollout.num_workers)."
        )
    directory.ask_for_processes(number)
    print(f"{directory.path.name} will take {processes} before its next collection, as far as there is room.")
