"""Makes docs/images/run.webp, the moving picture of docs/index.md, from a run of the quickstart with replays.

    make quickstart
    rlpipe evaluate RUN --replays 4
    python docs/make_animation.py RUN

To the left, the console and the success curve, as they were during the run; to the right, episodes of its evaluation,
one after the other, as `rlpipe replay` plays them. Needs Chromium, and the extra dev.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from make_pictures import IMAGES, Run, terminal

from rlpipe.backends.console import Console
from rlpipe.metrics.row import Row
from rlpipe.report.replays import section
from rlpipe.report.web.page import page as html
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import run_info
from rlpipe.trajectory import SpaceSpec

WIDTH, HEIGHT, MARGIN, LEFT = 1280, 620, 24, 690
FRAMES, MILLISECONDS, HELD = 64, 110, 14
"""Frames of the run, how long each is shown, and how many times the last one is."""
BACKGROUND, INK, MUTED, BLUE = "#fbfbf9", "#20252b", "#6b7280", "#1b6ca8"
EYE, TARGET = (0.85, 1.05, 0.8), (-0.22, 0.0, 0.2)


def consoles(run: Run, page: Page, counts: Sequence[int]) -> Iterator[Image.Image]:
    """Draws the live panel after some numbers of iterations."""
    console = Console(run_info(run.directory, run.config, 1, SpaceSpec(35, 8)))
    shown = 0
    page.set_viewport_size({"width": LEFT, "height": 420})
    for count in counts:
        for row in run.rows[shown:count]:
            console.show(Row(row["iteration"], row["total_timesteps"], row["time"], row["metrics"]))
        shown = count
        console.terminal = terminal()
        console.terminal.print(console.panel())
        page.set_content(f"<body style='margin:0'>{console.terminal.export_svg(title='make quickstart')}")
        yield _image(page.locator("svg").first.screenshot(omit_background=True))


def curve(run: Run, count: int, size: tuple[int, int]) -> Image.Image:
    """Draws the success of training so far, and the evaluations with their intervals."""
    figure = Figure(figsize=(size[0] / 100, size[1] / 100), dpi=100, facecolor=BACKGROUND, constrained_layout=True)
    axes = figure.subplots()
    axes.set_facecolor(BACKGROUND)
    points = [(row["total_timesteps"], row["metrics"]) for row in run.rows[:count]]
    trained = [(step, found["env/success_once"]) for step, found in points if "env/success_once" in found]
    axes.plot(*zip(*trained, strict=True), color=BLUE, lw=1.6, label="training") if trained else None
    for step, found in points:
        if "eval/success_once" in found:
            value = found["eval/success_once"]
            low, high = (found[f"eval/success_once_ci_{end}"] for end in ("low", "high"))
            bars = [[value - low], [high - value]]
            axes.errorbar([step], [value], bars, fmt="o", ms=5, color="#d1603d", capsize=3)
    axes.set(xlim=(0, 1.02 * run.rows[-1]["total_timesteps"]), ylim=(-0.02, 1.04))
    axes.set_title("success under sparse reward; dots: held-out episodes, 95 %", fontsize=10, color=INK, loc="left")
    axes.set_xlabel("environment steps", fontsize=9, color=MUTED)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(labelsize=8, colors=MUTED)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    buffer = io.BytesIO()
    figure.savefig(buffer, facecolor=BACKGROUND)
    return _image(buffer.getvalue())


def episodes(run: Path, page: Page, count: int) -> Iterator[tuple[Image.Image, str]]:
    """Plays the recorded episodes in their order, again and again, each with a moment of rest; yields pictures
    with what they show."""
    found = section(run)
    if found is None:
        raise SystemExit(f"{run} has no replays: rlpipe evaluate {run} --replays 4")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "replay.html")
        file.write_text(html("replay", [found], found.html), encoding="utf-8")
        page.set_viewport_size({"width": 1180, "height": 1000})
        page.goto(file.as_uri())
        page.wait_for_timeout(4000)  # until all meshes are there
        view, facts = page.locator(".replay-view").first, page.locator(".replay-facts").first
        label = page.locator(".replay-select").first
        number, step, rest, total = 0, 0, 0, int(page.locator(".replay-select").first.locator("option").count())
        page.add_style_tag(content=".replay-step { visibility: hidden }")
        page.evaluate("([eye, target]) => rlpipeReplay.look(eye, target)", [EYE, TARGET])
        page.evaluate("rlpipeReplay.show(0, 0)")
        for _ in range(count):
            page.evaluate("(step) => { rlpipeReplay.pause(); rlpipeReplay.go(step); }", step)
            page.wait_for_timeout(60)
            seed = label.locator("option").nth(number).inner_text().partition("·")[0].split(". ")[-1].strip()
            yield _image(view.screenshot()), f"{seed}: {facts.inner_text().partition(', return')[0]}"
            last = int((page.locator(".replay-step").first.text_content() or "0 of 0").rsplit(" ", 1)[1])
            step = min(step + 1 if last < 30 else step + 2, last)
            rest = rest + 1 if step == last else 0
            if rest > 3:
                number, step, rest = (number + 1) % total, 0, 0
                page.evaluate("(number) => rlpipeReplay.show(0, number)", number)


def frames(run: Run, page: Page) -> Iterator[Image.Image]:
    """Composes the frames."""
    counts = [max(1, round(len(run.rows) * number / (FRAMES - 1))) for number in range(FRAMES)]
    panels = list(consoles(run, page, counts))
    played = list(episodes(run.directory.path, page, FRAMES + HELD))
    title, small = (ImageFont.truetype(str(FONT), size) for size in (17, 14))
    for number, (robot, caption) in enumerate(played):
        place = min(number, FRAMES - 1)
        frame = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
        console = panels[place]
        console = console.resize((LEFT, round(console.height * LEFT / console.width)), Image.Resampling.LANCZOS)
        frame.paste(console, (MARGIN, MARGIN), console)
        below = MARGIN + console.height + 8
        frame.paste(curve(run, counts[place], (LEFT, HEIGHT - below - 8)), (MARGIN, below))
        x, width = MARGIN + LEFT + 28, WIDTH - 2 * MARGIN - LEFT - 28
        draw = ImageDraw.Draw(frame)
        draw.text((x, MARGIN + 4), "Episodes of the last evaluation", INK, title)
        height = HEIGHT - 2 * MARGIN - 70
        robot = _filling(robot, width, height)
        frame.paste(robot, (x, MARGIN + 36))
        draw.text((x, MARGIN + 46 + height), caption, MUTED, small)
        yield frame


def _filling(image: Image.Image, width: int, height: int) -> Image.Image:
    """Scales a picture so that it fills a rectangle, and cuts off what is too much at its sides."""
    scale = max(width / image.width, height / image.height)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _image(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGBA")


FONT = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def main() -> None:
    """Makes the picture from the run that the first argument names."""
    mpl.use("agg")
    run = Run(RunDirectory.existing(Path(sys.argv[1])))
    browser_path: Any = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=browser_path, args=arguments)
        first, *rest = frames(run, browser.new_page())
        browser.close()
    file = IMAGES / "run.webp"
    first.save(file, save_all=True, append_images=rest, duration=MILLISECONDS, loop=0, quality=72, method=6)
    print(f"{file}: {1 + len(rest)} frames, {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
