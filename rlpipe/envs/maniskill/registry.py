"""Tasks that ManiSkill registers, and the assets that they need."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

from rlpipe.envs.maniskill.loading import load_maniskill
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest


@functools.cache
def known_tasks() -> dict[str, int | None]:
    """Tasks that ManiSkill's source registers, by id, each with its time limit in steps; None where it has none.

    Reads the source, because importing it takes seconds.
    """
    spec = importlib.util.find_spec("mani_skill")
    folders = spec.submodule_search_locations if spec else None
    source = Path(next(iter(folders or [])), "envs")
    pattern = re.compile(r"@register_env\(\s*[\"']([^\"']+)[\"']([^)]*)")
    limits: dict[str, int | None] = {}
    for file in source.rglob("*.py"):
        for name, rest in pattern.findall(file.read_text(encoding="utf-8")):
            limit = re.search(r"max_episode_steps\s*=\s*(\d+)", rest)
            limits[name] = int(limit[1]) if limit else None
    return limits


def missing_assets(task: str) -> list[str]:
    """Assets that a registered task needs and this machine does not have. ManiSkill itself would ask on stdin."""
    from mani_skill.utils import assets
    from mani_skill.utils.registration import REGISTERED_ENVS

    missing: list[str] = []
    for asset in REGISTERED_ENVS[task].asset_download_ids or []:
        sources = (
            assets.expand_data_group_into_individual_data_source_ids(asset) if asset in assets.DATA_GROUPS else [asset]
        )
        missing += [source for source in sources if not assets.is_data_source_downloaded(source)]
    return missing


def registered_limit(task: str, key: str) -> int | None:
    """Returns the time limit of a registered task, in steps; None where it has none.

    Raises:
        ConfigError: ManiSkill has no such task.
    """
    if task in (limits := known_tasks()):
        return limits[task]
    load_maniskill()  # slow, so only if the user's own module may have registered the id
    import gymnasium
    from mani_skill.utils.registration import REGISTERED_ENVS

    if task not in REGISTERED_ENVS:
        raise ConfigError(
            f"{key}.id is {task!r}, but ManiSkill has no such task{nearest(task, REGISTERED_ENVS)} "
            f"It knows {len(REGISTERED_ENVS)} tasks."
        )
    limit: int | None = gymnasium.spec(task).max_episode_steps
    return limit
