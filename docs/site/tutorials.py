"""Runs the tutorials, docs/tutorials/*.md. They are notebooks in jupytext's Markdown, so that a change reads like one.

Outputs are never stored in the repository: they are made when the site is built, and kept in build/ until the tutorial
or the package changes.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
KEPT = ROOT / "build" / "tutorials"
SECONDS = 120
"""Time after which a cell counts as hanging."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3", "NO_COLOR": "1"}


def is_tutorial(page: str) -> bool:
    """True for a page that is a notebook."""
    return page.startswith("tutorials/") and page != "tutorials/index.md"


def names() -> list[str]:
    """File names of all tutorials."""
    return sorted(file.name for file in FOLDER.glob("*.md") if file.name != "index.md")


def prepare() -> None:
    """Runs all tutorials that changed, beside each other."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(outputs_of, (FOLDER / name for name in names())))


def rendered(file: Path, *, run: bool = True) -> str:
    """Returns a tutorial as a page: text, code and what the code printed.

    Args:
        file: of the tutorial.
        run: leave the code as it is, without outputs, if False.
    """
    return page(outputs_of(file) if run else read(file))


def read(file: Path) -> Any:
    """Reads a tutorial as a notebook, without outputs."""
    return jupytext.read(file)


def outputs_of(file: Path) -> Any:
    """Returns the notebook with its outputs; those of the same text and the same package are not made again."""
    kept = KEPT / f"{file.stem}-{digest(file)}.json"
    if not kept.exists():
        ran = execute(file)
        kept.parent.mkdir(parents=True, exist_ok=True)
        for old in kept.parent.glob(f"{file.stem}-*.json"):
            old.unlink()
        kept.write_text(json.dumps(ran), encoding="utf-8")
    return jupytext.reads(kept.read_text(encoding="utf-8"), fmt="ipynb")


def digest(file: Path) -> str:
    """Digest of all that the outputs of a tutorial depend on in this repository."""
    found = hashlib.sha256()
    for source in (
        file,
        Path(__file__),
        *sorted((ROOT / "rlpipe").rglob("*.py")),
        *sorted(ROOT.glob("configs/*.yaml")),
    ):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def execute(file: Path) -> Any:
    """Runs a tutorial in an empty folder, and returns the notebook with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = read(file)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **ENVIRONMENT, "PATH": path, "PYTHONPATH": python_path}
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=place)
        client.extra_arguments = ["--log-level=ERROR"]
        client.execute(env=environment)
    return notebook


def page(notebook: Any) -> str:
    """Writes a notebook as Markdown."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += filter(None, (shown(output) for output in joined(cell.get("outputs", []))))
    return "\n\n".join(parts) + "\n"


def joined(outputs: list[Any]) -> list[Any]:
    """Puts texts together that a cell printed in several pieces."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def shown(output: Any) -> str:
    """Writes an output of a cell as HTML: a table, a picture or text."""
    if output.output_type == "stream":
        return text(output.text)
    data = output.data
    if "image/png" in data:
        return f'<div class="output"><img alt="Plot" src="data:image/png;base64,{data["image/png"].strip()}"></div>'
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL).replace(' border="1"', "")
        return f'<div class="output">{"".join(line.strip() for line in table.splitlines())}</div>'
    return text(data["text/plain"])


def text(printed: str) -> str:
    """Writes what was printed, without the colours, line ends and padding of a terminal."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[ \r]+(?=\n)", "", printed).strip("\n")
    # an empty line would end the block of HTML
    escaped = html.escape(plain, quote=False).replace("\n", "&#10;")
    return f'<div class="output"><pre>{escaped}</pre></div>' if plain else ""
