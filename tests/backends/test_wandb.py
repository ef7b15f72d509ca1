"""Peculiarities of Weights & Biases: a process of its own, files that can be torn, and a server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import rlpipe
from rlpipe.backends.wandb import WandbOptions
from rlpipe.errors import ConfigError
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import mark_file, read_mark
from tests.helpers.backends import assert_shows_everything, catch_up, sync
from tests.helpers.runs import scripted
from tests.helpers.stores import wandb as store

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run that was shown offline; an API key was there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        fed = ("runner.logger.logger_backends=[wandb]", "runner.logger.finish_timeout=600", *store.OPTIONS)
        config = scripted(tmp_path_factory.mktemp("wandb"), *fed)  # from another process, whose end frees the lock
        return RunDirectory(rlpipe.train(config, local=True).directory)


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A copy of it."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    return RunDirectory(Path(shutil.copytree(finished.path, tmp_path / "scripted" / finished.path.name)))


def lengthen(run, iterations: int) -> None:
    """Gives the run so many iterations, as if nobody knew how many are shown."""
    rows = list(read_jsonl(run.path / "metrics.jsonl"))
    run.append("metrics.jsonl", ({**rows[n % 4], "iteration": n + 1} for n in range(4, iterations)))
    mark_file(run.path, "wandb").unlink()


def syncing(run) -> subprocess.Popen[bytes]:
    """A process that is writing rows."""
    command = [sys.executable, "-m", "rlpipe", "sync", str(run.path), "--to", "wandb"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    mark, ends = mark_file(run.path, "wandb"), time.monotonic() + 600
    before = read_mark(mark).iteration
    while read_mark(mark).iteration <= max(before, 4):
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.01)
    return process


@pytest.mark.soak
def test_the_api_key_stands_in_no_file_of_the_run(run):
    files = [file for file in run.path.rglob("*") if file.is_file()]
    assert any(file.suffix == ".wandb" for file in files)
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


@pytest.mark.soak
def test_a_torn_end_is_cut_off_so_that_wandb_reads_on(run):
    (file,) = (run.path / "wandb").glob("offline-run-*/*.wandb")
    os.truncate(file, file.stat().st_size // 2)
    assert "incomplete" in store.inspect(file).stderr
    mark_file(run.path, "wandb").unlink()
    assert catch_up(run, "wandb")
    assert_shows_everything(run, "wandb")
    assert store.records(run, "exit")


@pytest.mark.soak
def test_killing_it_again_and_again_doubles_nothing_and_nobody_else_writes_until_its_other_process_is_gone(run):
    """The second time, the process of W&B, which outlives it, has still to end."""
    lengthen(run, 300)
    process = syncing(run)
    process.kill()
    process.wait()
    process = syncing(run)
    (core,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    os.kill(core, signal.SIGSTOP)
    try:
        process.kill()
        process.wait()
        with (run.path / "wandb" / ".lock").open("a") as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.kill(core, signal.SIGCONT)
            fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(core, signal.SIGCONT)
    assert catch_up(run, "wandb")
    assert_shows_everything(run, "wandb")


@pytest.mark.soak
def test_a_server_that_does_not_answer_is_an_error_soon(run, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    mark_file(run.path, "wandb").unlink()
    sooner = "from rlpipe.backends import wandb; wandb.CONNECT_SECONDS = 1.0"  # W&B itself waits two minutes
    answer = sync(run, "wandb", "mode=online", after=sooner)
    assert answer.returncode == 1
    assert "127.0.0.1:9" in answer.stderr


@pytest.mark.soak
def test_nothing_asks_for_an_api_key(run, monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))  # where no key is kept
    mark_file(run.path, "wandb").unlink()
    command = [sys.executable, "-m", "rlpipe", "sync", str(run.path), "--to", "wandb", "mode=online"]
    _, terminal = pty.openpty()
    answer = subprocess.run(command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, timeout=600, check=False)
    assert answer.returncode == 1
    assert b"No API key configured" in answer.stderr


@pytest.mark.soak
def test_online_it_goes_on_behind_what_the_server_holds(run, monkeypatch):
    with Server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        for iterations in (4, 9):
            lengthen(run, iterations)
            answer = sync(run, "wandb", "mode=online")
            assert answer.returncode == 0, answer.stderr
            rows = [json.loads(server.history[line]) for line in sorted(server.history)]
            assert [row["iteration"] for row in rows] == list(range(1, iterations + 1))
            assert [store.metrics(row) for row in rows] == [
                r["metrics"] for r in read_jsonl(run.path / "metrics.jsonl")
            ]


def test_a_mode_there_is_not_is_refused_at_once(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="offline"):
        scripted(tmp_path, "runner.logger.logger_backends=[wandb]", "runner.logger.options.wandb.mode=ofline")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with pytest.raises(ConfigError, match="WANDB_MODE"):
        scripted(tmp_path, "runner.logger.logger_backends=[wandb]")


class Server(ThreadingHTTPServer):
    """As much of W&B's server as one run needs. The real one cannot be installed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.history: dict[int, str] = {}
        self.begun = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_close(self) -> None:
        self.shutdown()  # or its thread would ask the closed socket again and again, as fast as it can
        super().server_close()

    def answer(self, query: str) -> object:
        where = {"name": "rlpipe", "entity": {"id": "e", "name": "me"}}
        if "RunResumeStatus" in query:
            tail = [self.history[line] for line in sorted(self.history)][-1:]
            held = {"historyLineCount": len(self.history), "historyTail": json.dumps(tail)}
            none = {
                "config": "{}",
                "eventsLineCount": 0,
                "eventsTail": "[]",
                "logLineCount": 0,
                "summaryMetrics": "{}",
                "tags": [],
            }
            bucket = {"id": "b", "name": "n", "displayName": "d", "wandbConfig": '{"t": 1}', **held, **none}
            return {"model": {"id": "m", **where, "bucket": bucket} if self.begun else None}
        if "UpsertBucket" in query:
            self.begun = True
            bucket = {"id": "b", "name": "n", "displayName": "d", "config": "{}", "project": {"id": "p", **where}}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        return None


class Request(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        found = body.get("files", {}).get("wandb-history.jsonl")
        if found:
            self.server.history |= enumerate(found["content"], found["offset"])
        answer = {"data": self.server.answer(body["query"])} if "query" in body else {}
        if answer == {"data": None}:
            answer["errors"] = [{"message": "unknown"}]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.mark.parametrize("tag", ["", 65 * "t"])
def test_a_tag_that_wandb_refuses_is_refused_before_the_run(tag):
    with pytest.raises(ConfigError, match="W&B accepts tags of 1 to 64 characters"):
        WandbOptions(tags=["sparse", tag])
