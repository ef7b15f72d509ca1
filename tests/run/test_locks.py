"""Locks: one holder at a time, also when a holder removes its file, and nothing of a temporary one stays behind."""

from __future__ import annotations

import threading
import time

import pytest

from rlpipe.errors import ConfigError
from rlpipe.run.locks import Lock, TemporaryLock
from rlpipe.run.resume import locked_run
from tests.helpers.runs import scripted

KINDS = pytest.mark.parametrize("kind", [Lock, TemporaryLock])


@KINDS
def test_a_second_holder_is_refused_until_the_first_releases(tmp_path, kind):
    first = kind(tmp_path / "lock", 0, "refused")
    with pytest.raises(ConfigError, match="refused"):
        kind(tmp_path / "lock", 0, "refused")
    first.release()
    kind(tmp_path / "lock", 0, "refused").release()


def test_the_file_of_a_lock_stays(tmp_path):
    Lock(tmp_path / "lock", 0, "refused").release()
    assert (tmp_path / "lock").exists()


def test_a_temporary_lock_leaves_neither_its_file_nor_the_folders_it_created(tmp_path):
    with TemporaryLock(tmp_path / "a" / "b" / "lock", 0, "refused"):
        assert (tmp_path / "a" / "b" / "lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_lock_leaves_folders_that_hold_something_or_were_there_before(tmp_path):
    (tmp_path / "before").mkdir()
    with TemporaryLock(tmp_path / "before" / "a" / "lock", 0, "refused"):
        (tmp_path / "before" / "a" / "run").touch()
    assert [path.name for path in (tmp_path / "before" / "a").iterdir()] == ["run"]
    TemporaryLock((tmp_path / "empty") / "lock", 0, "refused").release()
    (tmp_path / "empty").mkdir()
    TemporaryLock((tmp_path / "empty") / "lock", 0, "refused").release()
    assert (tmp_path / "empty").is_dir()


def test_who_waits_while_the_holder_removes_the_file_excludes_and_is_excluded(tmp_path, monkeypatch):
    file = tmp_path / "folder" / "lock"
    first, third = TemporaryLock(file, 0, "first refused"), []

    def release_and_let_a_third_in(_: float) -> None:
        if not third:
            first.release()
            third.append(TemporaryLock(file, 0, "third refused"))

    monkeypatch.setattr(time, "sleep", release_and_let_a_third_in)
    with pytest.raises(ConfigError, match="second refused"):
        TemporaryLock(file, 0.05, "second refused")
    third[0].release()
    with (
        TemporaryLock(file, 0, "fourth refused"),
        pytest.raises(ConfigError, match="fifth refused"),
    ):
        TemporaryLock(file, 0, "fifth refused")


def test_of_many_that_lock_and_remove_at_once_one_holds_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpipe.run.locks._POLL_SECONDS", 0.0)
    inside, most = [], []

    def lock_often() -> None:
        for _ in range(30):
            with TemporaryLock(tmp_path / "folder" / "lock", 60, "refused"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=lock_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 120
    assert not (tmp_path / "folder" / "lock").exists()


def test_a_lock_whose_file_was_deleted_by_hand_leaves_that_of_the_next_holder(tmp_path):
    first = TemporaryLock(tmp_path / "lock", 0, "refused")
    (tmp_path / "lock").unlink()
    with TemporaryLock(tmp_path / "lock", 0, "refused"):
        first.release()
        assert (tmp_path / "lock").exists()


def test_a_file_in_the_place_of_the_folder_is_an_error_and_stays(tmp_path):
    (tmp_path / "folder").write_text("not a folder")
    with pytest.raises(FileExistsError):
        TemporaryLock(tmp_path / "folder" / "lock", 0, "refused")
    assert (tmp_path / "folder").read_text() == "not a folder"


def test_a_file_that_cannot_be_opened_is_an_error_and_leaves_no_folder(tmp_path):
    with pytest.raises(OSError, match="too long"):
        TemporaryLock(tmp_path / "folder" / ("x" * 300), 0, "refused")
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_ends_without_a_run_leaves_the_folder_as_it_was(tmp_path):
    with locked_run(scripted(tmp_path / "runs", "runner.auto_resume=true"), None):
        assert [path.name[:18] for path in (tmp_path / "runs" / "scripted").iterdir()] == [".auto-resume-seed0"]
    assert list(tmp_path.iterdir()) == []
