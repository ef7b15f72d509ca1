"""The package as a user gets it: an sdist, a wheel built from it, and an installation that knows no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlpipe.cli import app
from rlpipe.cli.configs import description
from rlpipe.config import shipped
from rlpipe.config.schema import Config
from rlpipe.config.sections import build
from rlpipe.config.tree import read_tree
from rlpipe.errors import ConfigError
from tests.helpers.commands import command

ROOT = Path(__file__).parent.parent
FOLDERS = ("benchmarks", "configs", "docs", "launch", "rlpipe", "tests")
SINGLE_FILES = ("LICENSE", "MANIFEST.in", "Makefile", "README.md", "constraints.txt", "pyproject.toml")
NAMES = sorted(file.stem for file in (ROOT / "configs").glob("*.yaml"))
DEMONSTRATIONS = "configs/demonstrations/PickCube-v1.h5"
QUICK = ("runner.total_timesteps=512", "evaluation.episodes=4", "runner.logger.logger_backends=[]")


def files_in(folder: str) -> set[str]:
    """Files of a folder of the project, as paths from its top."""
    found = {file.relative_to(ROOT) for file in (ROOT / folder).rglob("*") if file.is_file()}
    return {file.as_posix() for file in found if "__pycache__" not in file.parts}


def succeed(command: list[str], folder: Path) -> str:
    """Runs a command without the checkout on its path, and returns its output."""
    answer = run(command, folder)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the project, because a build leaves files where it works."""
    copy = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in SINGLE_FILES:
        shutil.copy(ROOT / file, copy)
    return copy


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("sdist")
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    succeed([sys.executable, "-c", code, str(out)], source)
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(sdist), "--wheel-dir", str(out), folder=out)
    (file,) = out.glob("*.whl")
    return file


def pip(verb: str, *arguments: str, folder: Path, python: Path | None = None) -> None:
    """Runs pip without the network: what a build needs is in the environment of the tests."""
    other = [] if python is None else ["--python", str(python)]
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    succeed([sys.executable, "-m", "pip", *other, verb, *offline, *arguments], folder)


@dataclass(frozen=True)
class Installation:
    """A virtual environment with rlpipe in it, and a folder far from the checkout to work in."""

    root: Path

    @property
    def scripts(self) -> Path:
        return self.root / ("Scripts" if os.name == "nt" else "bin")

    @property
    def folder(self) -> Path:
        return self.root.parent / "work"

    def rlpipe(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run([str(self.scripts / "rlpipe"), *arguments], self.folder)

    def python(self, code: str) -> str:
        return succeed([str(self.scripts / "python"), "-c", code], self.folder).strip()


def install(parent: Path, *arguments: str) -> Installation:
    """Installs into a new environment, which borrows all other packages from the environment of the tests."""
    installation = Installation(parent / "environment")
    venv.create(installation.root, symlinks=os.name != "nt")
    installation.folder.mkdir()
    here = "import sysconfig; print(sysconfig.get_path('purelib'))"
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(installation.python(here), "borrowed.pth").write_text("\n".join(borrowed))
    pip("install", *arguments, folder=parent, python=installation.scripts / "python")
    return installation


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return install(tmp_path_factory.mktemp("installed"), str(wheel))


@pytest.fixture(scope="module")
def editable(source, tmp_path_factory):
    return install(tmp_path_factory.mktemp("editable"), "--editable", str(source))


@pytest.mark.extras
def test_the_wheel_holds_every_file_of_the_package_and_every_shipped_file_and_no_other(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == files_in("rlpipe") | {f"rlpipe/{name}" for name in files_in("configs")}


@pytest.mark.extras
def test_the_wheel_holds_the_licence(wheel):
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


@pytest.mark.extras
def test_the_sdist_holds_the_whole_project(sdist):
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {*SINGLE_FILES}.union(*map(files_in, FOLDERS)) <= held


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["installed", "editable"])
class TestAnInstallation:
    """First steps of a user outside any checkout."""

    @pytest.fixture
    def user(self, kind, request):
        return request.getfixturevalue(kind)

    def test_it_is_not_the_checkout_that_answers(self, user, kind, request):
        expected = user.root if kind == "installed" else request.getfixturevalue("source")
        assert Path(user.python("import rlpipe; print(rlpipe.__file__)")).is_relative_to(expected)

    def test_it_lists_the_shipped_configurations(self, user):
        answer = user.rlpipe("configs")
        assert answer.returncode == 0, answer.stderr
        assert [line.split()[0] for line in answer.stdout.splitlines()] == ["name", *NAMES]

    def test_a_copy_of_a_configuration_with_demonstrations_finds_the_shipped_ones(self, user):
        (user.folder / "mine.yaml").write_text(user.rlpipe("configs", "sparse_pick_cube").stdout)
        code = "from rlpipe.config import schema, sections, tree; "
        found = Path(user.python(code + "print(sections.build(tree.read_tree('mine.yaml', []), schema.Config).demos)"))
        assert found.is_file()
        assert found.read_bytes() == (ROOT / DEMONSTRATIONS).read_bytes()
        assert found.with_suffix(".json").is_file()


@pytest.mark.extras
def test_it_prints_a_shipped_configuration_as_it_is(installed):
    assert installed.rlpipe("configs", "ppo_cartpole").stdout == (ROOT / "configs/ppo_cartpole.yaml").read_text()


@pytest.mark.extras
def test_an_installation_trains_a_shipped_configuration_by_its_name(installed):
    answer = installed.rlpipe("train", "ppo_cartpole", "--local", *QUICK)
    assert answer.returncode == 0, answer.stderr
    assert len(list(installed.folder.glob("runs/ppo_cartpole/*/metrics.jsonl"))) == 1


# --- what a name and a path stand for


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def demonstrations_of(*overrides: str) -> Path:
    return Path(build(read_tree("sparse_pick_cube", overrides), Config).demos or "")


def test_a_file_of_the_working_directory_comes_before_a_shipped_configuration(elsewhere):
    Path("ppo_cartpole").write_text("runner: {seed: 7}")
    assert read_tree("ppo_cartpole", []).runner.seed == 7


def test_a_folder_of_the_same_name_does_not_hide_a_shipped_configuration(elsewhere):
    Path("ppo_cartpole").mkdir()
    assert read_tree("ppo_cartpole", []).env.train.id == "CartPole-v1"


def test_a_path_that_the_pages_name_is_found_without_a_checkout(elsewhere):
    assert read_tree("configs/ppo_cartpole.yaml", []).env.train.id == "CartPole-v1"
    with pytest.raises(ConfigError, match=r"no configuration file other/ppo_cartpole\.yaml.*'ppo_cartpole'"):
        read_tree("other/ppo_cartpole.yaml", [])


def test_a_configuration_of_the_working_directory_comes_before_the_shipped_one_of_its_path(elsewhere):
    Path("configs").mkdir()
    Path("configs/ppo_cartpole.yaml").write_text("runner: {seed: 7}")
    assert read_tree("configs/ppo_cartpole.yaml", []).runner.seed == 7


def test_a_mistake_in_a_change_is_what_the_error_is_about(elsewhere):
    answer = command("train", "sparse_pick_cube", "runner.nonsense=1")
    assert answer.code == 2
    assert "unknown key runner.nonsense" in answer.err


def test_a_name_that_is_not_shipped_is_refused_with_the_nearest_one_and_the_command_that_lists_them(elsewhere):
    answer = command("train", "ppo_psh_cube")
    assert answer.code == 2
    for words in ("ppo_psh_cube", "did you mean 'ppo_push_cube'?", "rlpipe configs"):
        assert words in answer.err


def test_demonstrations_of_the_working_directory_come_before_the_shipped_ones(elsewhere):
    assert demonstrations_of() == shipped.folder() / "demonstrations/PickCube-v1.h5"
    mine = elsewhere / DEMONSTRATIONS
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert demonstrations_of() == mine


@pytest.mark.parametrize("path", ["configs/demonstrations/Mine-v1.h5", "demonstrations/PickCube-v1.h5"])
def test_other_demonstrations_are_those_of_the_working_directory(elsewhere, path):
    assert demonstrations_of(f"demos={path}") == elsewhere / path


def test_in_the_checkout_the_demonstrations_are_those_of_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert demonstrations_of() == ROOT / DEMONSTRATIONS


# --- the list


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_configuration_says_in_a_sentence_what_it_is_for(name):
    sentence = description((ROOT / "configs" / f"{name}.yaml").read_text())
    assert sentence.endswith(".")
    assert 40 <= len(sentence) <= 160


def test_a_description_is_the_first_sentence_of_the_comment_though_it_spans_lines_and_names_a_file():
    assert description("# Like\n# a.yaml, slower. More.\nenv: 1  # no.\n") == "Like a.yaml, slower."
    assert description("env: 1  # no.\n") == ""


def test_the_list_names_task_and_algorithm():
    lines = CliRunner().invoke(app, ["configs"]).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("sparse_pick_cube ")]
    assert line.split(maxsplit=3)[:3] == ["sparse_pick_cube", "PickCube-v1", "rlpd"]


def test_a_configuration_that_is_not_shipped_cannot_be_printed():
    result = CliRunner().invoke(app, ["configs", "ppo_cartpol"])
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'ppo_cartpole'?" in str(result.exception)
