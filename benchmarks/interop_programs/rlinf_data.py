"""Has RLinf's loader of DAgger's datasets read a folder, ``python rlinf_data.py FOLDER TRUTH``; prints rows as JSON.

``TRUTH`` is an archive of NumPy's with the columns ``NUMBER/NAME`` of the episodes. RLinf's repository is on the path.
"""

import importlib
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch


def loader() -> type:
    """Imports the loader alone: the package around it asks for Ray and more."""
    import logging

    root = Path(next(entry for entry in sys.path if (Path(entry) / "rlinf" / "data").is_dir()))
    for name in ("rlinf", "rlinf.data", "rlinf.data.datasets", "rlinf.data.datasets.dagger", "rlinf.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    log = types.ModuleType("rlinf.utils.logging")
    log.get_logger = logging.getLogger
    sys.modules["rlinf.utils.logging"] = log
    return importlib.import_module("rlinf.data.datasets.dagger.dataset").RollingLeRobotDataset


def main() -> None:
    """Loads the folder as the archive of an earlier run, and compares every frame."""
    folder, chunk = Path(sys.argv[1]), 4
    rows = []
    found = loader().archived_shard_info(folder)
    with np.load(sys.argv[2]) as held:
        truth = {name: held[name] for name in held.files}
    count = 1 + max(int(name.partition("/")[0]) for name in truth)
    lengths = [len(truth[f"{number}/actions"]) for number in range(count)]
    numbers = f"{found and found['num_episodes']} episodes, {found and found['num_frames']} frames"
    rows.append({"check": "finds the folder", "numbers": numbers,
                 "passed": found == {"num_episodes": count, "num_frames": sum(lengths)}})  # fmt: skip
    for only_interventions in (False, True):
        dataset = loader()(
            folder.parent.parent, chunk_size=chunk, in_memory_mode=True, require_all_intervene=only_interventions
        )
        dataset.publish_staged_resume_shards(dataset.load_archived_shards_staged([folder]))
        if only_interventions:
            flags = [truth[f"{number}/intervene_flag"] for number in range(count)]
            expected = sum(bool(flag[row : row + chunk].all()) for flag in flags for row in range(len(flag)))
            rows.append({"check": "keeps windows of interventions", "passed": len(dataset) == expected,
                         "numbers": f"{len(dataset)} of {sum(lengths)}"})  # fmt: skip
            continue
        problems, start = [], 0
        for number, length in enumerate(lengths):
            for row in range(length):
                item = dataset[start + row]
                window = np.clip(np.arange(row, row + chunk), 0, length - 1)
                for name in {name.partition("/")[2] for name in truth}:
                    values = truth[f"{number}/{name}"]
                    if name == "task":
                        equal = item[name] == values[row]
                    elif name == "actions":
                        equal = np.array_equal(item[name].numpy(), values[window])
                    elif values.ndim == 4:
                        picture = torch.round(item[name] * 255).to(torch.uint8).permute(1, 2, 0).numpy()
                        equal = np.array_equal(picture, values[row])
                    else:
                        equal = np.array_equal(item[name].numpy().reshape(-1), values[row].reshape(-1))
                    if not equal:
                        problems.append(f"episode {number}, row {row}: {name}")
            start += length
        rows.append({"check": "loads every frame", "passed": not problems,
                     "numbers": "; ".join([f"{start} windows of {chunk} actions", *problems[:3]])})  # fmt: skip
    print(json.dumps(rows))


main()
