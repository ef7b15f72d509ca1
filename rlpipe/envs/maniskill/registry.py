"""Tasks that ManiSkill registers, and the assets that they need."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path


@functools.cache
def known_tasks() -> dict[str, int | None]:
    """Tasks that ManiSkill's source registers, by id, each with its time limit in steps; None where it has none.

    Reads the source, because importing it takes seconds.
    """
    spec = importlib.util.find_spec("mani_skill")
    folders = spec.submodule_search_locations if spec else None
    source = Path(next(iter(folders or [])), "envs")
    pattern = re.compile(r"@register_env\(\s*[\"']([^\"']+)[\"']([^)]*)")
    known: dict[str, int | None] = {}
    for file in source.rglob("*.py"):
        for name, rest in pattern.findall(file.read_text(encoding="utf-8")):
            limit = re.search(r"max_episode_steps\s*=\s*(\d+)", rest)
            known[name] = int(limit[1]) if limit else None
    return known


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
