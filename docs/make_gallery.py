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

import imageio_ffmpeg
from PIL import Image

from rlpipe.analysis.replays.video import FRAMES_PER_SECOND, make_video, side_by_side
from rlpipe.config.tree import read_tree
from rlpipe.run.replays import FOLDER, ReplayFolder

DOCS = Path(__file__).parent
WIDTH, STRIDE, QUALITY = 720, 2, 60
"""Pixels, pictures of the video for one of the moving picture, and quality of the compression."""


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
    frames = imageio_ffmpeg.read_frames(str(video))
    size = next(frames)["size"]
    images = [
        Image.frombytes("RGB", size, frame).resize((WIDTH, round(WIDTH * size[1] / size[0])), Image.Resampling.LANCZOS)
        for number, frame in enumerate(frames)
        if number % STRIDE == 0
    ]
    images[0].save(
        picture,
        save_all=True,
        append_images=images[1:],
        duration=1000 * STRIDE // FRAMES_PER_SECOND,
        loop=0,
        quality=QUALITY,
        method=6,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
