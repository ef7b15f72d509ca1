"""Output on terminals and pipes of any encoding."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.cli.streams import print_json, progress_of_files, set_up_streams
from rlpipe.run.directory import read_jsonl
from tests.helpers.commands import command

ENCODINGS = ("ascii", "latin-1", "gbk", "cp1252", "utf-8")


def written(text, encoding):
    """Bytes that arrive at a terminal of this encoding."""
    arrived = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(arrived, encoding=encoding, newline="\n", write_through=True))
        set_up_streams()
        sys.stdout.write(text)
        return arrived.getvalue()


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", b"+ x > e ?"),
        ("latin-1", b"+ x > \xe9 ?"),
        ("gbk", b"+ x \xa1\xfa \xa8\xa6 \xba\xc3"),
        ("utf-8", "✓ ✗ → é 好".encode()),
    ],
)
def test_a_terminal_shows_the_same_words_with_replacements_for_what_it_lacks(encoding, shown):
    assert written("✓ ✗ → é 好", encoding) == shown


@given(st.text(st.characters(codec="utf-8"), max_size=8), st.sampled_from(ENCODINGS))
def test_any_text_can_be_written_and_what_the_encoding_has_is_unchanged(text, encoding):
    kept = [one for one in text if one == one.encode(encoding, "ignore").decode(encoding)]
    shown = written(text, encoding).decode(encoding)
    assert len(shown) == len(text)
    assert [one for one, before in zip(shown, text, strict=True) if one == before] == kept


def test_a_path_that_is_no_text_is_written_with_its_own_bytes():
    assert written("runs/a\udcff", "utf-8") == b"runs/a\xff"


def test_json_is_the_same_in_every_encoding():
    assert command("metrics", "explain", "train/loss", "--json").out.isascii()


def test_a_command_with_closed_streams_says_by_its_exit_code_how_it_ended():
    shell = f"{sys.executable} -m rlpipe metrics explain nothing 0<&- 1>&- 2>&-; echo $?"
    assert subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False).stdout == "2\n"


LOUD = """
import ctypes, os
print("on import")
from rlpipe.envs.scripted import Scripted, ScriptedConfig
class Loud(Scripted):
    Config = ScriptedConfig
    def step(self, actions, active=None):
        print("from Python")
        os.write(1, b"to the descriptor")
        ctypes.CDLL(None).printf(b"from C, which holds it back")
        return super().step(actions, active)
"""


@pytest.mark.parametrize("on_ray", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_json_is_all_that_a_command_writes_to_stdout_whatever_a_simulator_prints(tmp_path, on_ray):
    (tmp_path / "loud.py").write_text(LOUD)
    (tmp_path / "task.yaml").write_text("env: {train: {name: 'loud:Loud', total_num_envs: 1}}")
    command = ("evaluate", "task.yaml", "--policy", "zero", "--episodes", "1", "--json")
    python = [sys.executable, "-m", "rlpipe", *command, *([] if on_ray else ["--local"])]
    answer = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["protocol"]["evaluation_episodes"] == 1
    for words in ("on import", "from Python", "to the descriptor", *([] if on_ray else ["from C"])):
        assert words in answer.stderr  # what C holds back ends with its worker
    assert ":actor_name:" not in answer.stderr


def test_a_number_that_json_does_not_have_is_null(capsys):
    print_json({"mean": float("nan"), "several": (1, float("inf"))})
    assert json.loads(capsys.readouterr().out) == {"mean": None, "several": [1, None]}


@pytest.fixture
def reading(tmp_path, monkeypatch):
    """Reads a file of 50 lines, up to one of them, and returns what a terminal shows meanwhile."""
    file = tmp_path / "episodes.jsonl"
    row = {"iteration": 1, "worker": 0, "slot": 0, "seed": 1, "policy_version": 0, "length": 1, "success_once": True}
    row |= {"success_at_end": True, "success_at_reset": False, "terminated": True, "truncated": False, "return": 1.0}
    file.write_text(50 * (json.dumps(row) + "\n"))
    monkeypatch.setattr("rlpipe.files.WATCHED_BYTES", 1)
    monkeypatch.setenv("TERM", "xterm")

    def shown(until=50, patience=0.0, is_terminal=True):
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        if is_terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes anything for one
        monkeypatch.setattr("rlpipe.cli.streams.PATIENCE_SECONDS", patience)
        monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
        with progress_of_files():
            next(islice(read_jsonl(file), until - 1, None))
            before_end = terminal.getvalue()
        assert terminal.getvalue() == before_end  # nothing is left open
        return before_end

    return shown


@pytest.mark.parametrize("until", [50, 20])
def test_a_terminal_shows_how_far_a_file_is_read(reading, until):
    assert "reading episodes.jsonl" in reading(until)


def test_no_progress_is_shown_of_what_takes_a_moment_or_without_a_terminal(reading):
    assert reading(patience=1e9) == ""
    assert reading(is_terminal=False) == ""
