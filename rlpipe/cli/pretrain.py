"""``rlpipe pretrain CONFIG demos=FILE.h5``"""

from __future__ import annotations

from typing import Annotated

import typer

from rlpipe.cli import arguments


def pretrain(
    config: Annotated[str, typer.Argument(help="YAML file of the task and the policy, such as a training run's.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as demos=FILE.h5.", metavar="[key=value]...")
    ] = None,
    local: arguments.Local = False,
    ray_address: arguments.RayAddress = None,
) -> None:
    """Fit a policy to demonstrations by behaviour cloning, and evaluate it.

    A later run can start from the policy with any algorithm: policy.warm_start=RUN.
    """
    from rlpipe.cli.train import run
    from rlpipe.config.loading import load_pretraining

    run(load_pretraining(config, overrides or []), local=local, ray_address=ray_address)
