"""``rlpipe pretrain CONFIG demos=FILE.h5``"""

from __future__ import annotations

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="pretrain")(pretrain)


def pretrain(
    config: Annotated[str, typer.Argument(help="YAML file of the task and the policy, such as a training run's.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as demos=FILE.h5.", metavar="[key=value]...")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run everything in this process, without Ray.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster to join.", show_default="RAY_ADDRESS, or a new one here")
    ] = None,
) -> None:
    """Fit a policy to demonstrations by behaviour cloning, and evaluate it.

    A later run can start from the policy with any algorithm: policy.warm_start=RUN.
    """
    from rlpipe.cli.train import run
    from rlpipe.config.loading import load_pretraining

    run(load_pretraining(config, overrides or []), local=local, ray_address=ray_address)
