"""Makes what docs/gallery.md shows of a trained configuration: a moving picture, and a replay for the site to play.

    python docs/make_gallery.py sparse_pick_cube_few RUN

Takes the first success and the first failure of the run's last evaluation. Writes
docs/images/gallery/CONFIGURATION.webp, and into docs/replays/CONFIGURATION/ some 100 kB of poses and observations,
without any mesh of a robot. Needs the extra dev, and ManiSkill.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rlpipe.backends.shared.video import PER_SECOND, some_pictures
from rlpipe.config.tree import read_tree
from rlpipe.report.replays.video import make_video, side_by_side
from rlpipe.run.replays import FOLDER, ReplayFolder

DOCS = Path(__file__).parent
WIDTH, QUALITY = 720, 60
"""Pixels, and quality of the compression."""


def main(name: str, run: Path) -> None:
    """Writes both."""
    folder = ReplayFolder(run / FOLDER)
    found = folder.read(folder.sets()[0])
    demonstrations = read_tree(run / "config.yaml", []).get("num_demos")
    learnt = f", learnt from {demonstrations} demonstrations" if demonstrations else ""
    (row,) = side_by_side(found.replays, 1)
    shown = [one for one in row if one is not None]
    kept = ReplayFolder(DOCS / "replays" / name / FOLDER)
    for file in kept.path.glob("*.npz"):
        file.unlink()
    source = f"the last evaluation of {name}{learnt}"
    scenes = {key: folder.read_scene(key) for key in {one.scene for one in shown}}
    kept.write("evaluation", replace(found, source=source, iteration=0, replays=shown), scenes)
    picture = DOCS / "images" / "gallery" / f"{name}.webp"
    picture.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        animate(make_video(kept.path.parent, 1, out=Path(scratch, "video.mp4")), picture)
    print(f"{picture.relative_to(DOCS.parent)}: {picture.stat().st_size / 1e3:.0f} kB")


def animate(video: Path, picture: Path) -> None:
    """Writes a video as a moving picture for pages."""
    first, *others = some_pictures(video, WIDTH, PER_SECOND)
    first.save(
        picture, save_all=True, append_images=others, duration=1000 // PER_SECOND, loop=0, quality=QUALITY, method=6
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
