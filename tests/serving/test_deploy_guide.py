"""The guide on deploying: what it shows works as it stands."""

from __future__ import annotations

import re

from tests.helpers import REPOSITORY
from tests.helpers.acting import trained

PAGE = (REPOSITORY / "docs" / "deploy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_loops_of_the_guide_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "runs", "CartPole-v1", {"name": "mlp"})
    names: dict = {}
    for text in BLOCKS:
        if "openpi_client" not in text:  # benchmarks/interop.py runs that
            exec(compile(text, "deploy.md", "exec"), names)
    assert names["batch"].rewards.shape == (128, 1)
    assert "(128, 1)" in capsys.readouterr().out
