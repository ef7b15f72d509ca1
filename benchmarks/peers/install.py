"""Makes a virtual environment for each library that ``benchmarks/throughput.py`` compares rlpipe with.

    python benchmarks/peers/install.py                         # all of them, 2 to 3 GB each
    python benchmarks/peers/install.py sample_factory torchrl

The environments lie in ``~/.cache/rlpipe/peers`` (``$XDG_CACHE_HOME/rlpipe/peers``), outside the repository. Versions
come from ``constraints.txt``, except where a peer asks for others. A CPU build of torch is enough and ten times
smaller; where pip finds none, the default build works too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent.parent / "constraints.txt"
FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rlpipe" / "peers"
COMMON = ("torch", "mani_skill")
PEERS = {
    "sb3": ("stable_baselines3",),
    "torchrl": ("torchrl==0.14.1", "tensordict==0.14.3"),
    "rllib": ("ray[rllib]", "gymnasium==1.2.2"),
    "sample_factory": (
        "sample-factory==2.1.1",
        "gymnasium==0.29.1",
        "numpy==1.26.4",
        "opencv-python==4.11.0.86",
        "huggingface-hub==0.36.0",
        "scipy==1.15.3",
    ),
}
"""Requirements of each peer by name; a version here replaces that of the constraints."""


def interpreter(peer: str) -> Path:
    """Python of a peer's environment, which need not exist."""
    return FOLDER / peer / "bin" / "python"


def is_installed(peer: str) -> bool:
    """True if the peer's environment is complete."""
    return (FOLDER / peer / "installed").exists()


def canonical(requirement: str) -> str:
    """Name of a requirement as package indexes spell it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[=<>~! ]", requirement)[0]).lower()


def constraints(peer: str) -> str:
    """Lines of ``constraints.txt`` without the packages whose versions the peer chooses."""
    own = {canonical(requirement) for requirement in PEERS[peer] if "==" in requirement}
    lines = CONSTRAINTS.read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("#") or canonical(line) not in own) + "\n"


def install(peer: str) -> None:
    """Makes the environment of a peer anew.

    Raises:
        CalledProcessError: pip found no versions that fit together, or could not download one.
    """
    venv.create(FOLDER / peer, with_pip=True, clear=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text(constraints(peer))
        pip = [str(interpreter(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--constraint", str(file), *COMMON, *PEERS[peer]], check=True)
    (FOLDER / peer / "installed").touch()


def main() -> None:
    """Installs the peers that the command names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"any of {', '.join(PEERS)}; default: all")
    peers = parser.parse_args().peers or list(PEERS)
    if unknown := set(peers) - PEERS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(PEERS)}")
    failed = []
    for peer in peers:
        print(f"{peer}: installing into {FOLDER / peer}", flush=True)
        try:
            install(peer)
        except subprocess.CalledProcessError as error:
            failed.append(peer)
            print(f"{peer}: {error}", file=sys.stderr)
    if failed:
        sys.exit(f"not installed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
