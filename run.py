#!/usr/bin/env python3
"""The two commands of Postroom, for a machine that has Python 3.11 and nothing else.

    python3 run.py                   start the inbox: service and worker, on http://127.0.0.1:8000
    python3 run.py test [ARGS]       every check and every test; ARGS go to pytest

The first run makes an environment in .venv beside this file and installs Postroom into it, by the versions in
uv.lock; later runs find it there and start at once. Also:

    python3 run.py COMMAND [ARGS]    any command of postroom: submit, list, dead, doctor ...
    python3 run.py help              all of them
    python3 run.py check             the fast part of `test`: format, lint, types, import contracts
    python3 run.py campaign [ARGS]   the long fault campaigns in tests/campaigns
    python3 run.py bench [ARGS]      the measurements in benchmarks
    python3 run.py setup             make or mend the environment with the tools for developers, start nothing

Relative paths, and the default store ./postroom.db, belong to the folder that you are in.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

OLDEST_PYTHON = (3, 11)
ROOT = Path(__file__).resolve().parent
SERVICE_EXTRAS = ("local",)
DEVELOPER_EXTRAS = ("local", "dev")

# What pip prints when no index answers; its last line then says "no matching distribution", which misleads.
NETWORK_SIGNS = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "nodename nor servname provided",
    "Network is unreachable",
    "Connection refused",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "NewConnectionError",
    "(from versions: none)",  # every package we name exists, so nobody answered
)


class Failed(Exception):
    """The run ends here; the text says what was found and what to do."""


class NetworkMissing(Failed):
    """No package index answered: another try with other versions is of no use."""


def say(text: str) -> None:
    # stderr, so that `run.py get ID --json | jq` sees the answer only.
    print(f"run.py: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- what is asked


@dataclass(frozen=True)
class Plan:
    """One command line, understood: which extras it needs and what happens then."""

    action: str  # "postroom", "test", "check", "campaign", "bench", "setup" or "usage"
    arguments: tuple[str, ...] = ()

    @property
    def extras(self) -> tuple[str, ...]:
        return SERVICE_EXTRAS if self.action == "postroom" else DEVELOPER_EXTRAS


def understand(arguments: Sequence[str]) -> Plan:
    """Turn the words after `run.py` into a plan; words that are not ours belong to the command `postroom`."""
    if not arguments:
        return Plan("postroom", ("serve",))
    first, rest = arguments[0], tuple(arguments[1:])
    if first in ("-h", "--help"):
        return Plan("usage")
    if first == "help":
        return Plan("postroom", (*rest, "--help"))
    if first in ("test", "check", "campaign", "bench", "setup"):
        return Plan(first, rest)
    if first.startswith("-") and first != "--version":
        return Plan("postroom", ("serve", *arguments))
    return Plan("postroom", tuple(arguments))


# ---------------------------------------------------------------- what is locked


def constraints_from_lock(lock: dict[str, Any]) -> list[str]:
    """The versions of a uv.lock as lines that pip understands as constraints.

    A package that is locked in several versions (one for each range of Pythons) gives a line for each, with
    the marker under which it holds.
    """
    lines = []
    for package in lock.get("package", []):
        if "registry" not in package.get("source", {}):
            continue  # ourselves
        line = f"{package['name']}=={package['version']}"
        markers = package.get("resolution-markers", [])
        if markers:
            line += " ; " + " or ".join(f"({marker})" for marker in markers)
        lines.append(line)
    return sorted(lines)


def digest_of(project: dict[str, Any], lock_text: str) -> str:
    """A hash of all that decides what is installed; the settings of linters are no part of it."""
    told = {
        "project": project.get("project"),
        "build-system": project.get("build-system"),
        "hatch": project.get("tool", {}).get("hatch"),
        "lock": lock_text,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------- the environment


@dataclass(frozen=True)
class Stamp:
    """What an environment holds. It is written last: an environment without it is not trusted."""

    root: str
    digest: str
    extras: tuple[str, ...]
    made_here: bool  # False for an environment that stood in .venv before us: it is never deleted

    def serves(self, root: str, digest: str, extras: Iterable[str]) -> bool:
        return self.root == root and self.digest == digest and set(extras) <= set(self.extras)


class Environment:
    """The folder .venv, made by us or found there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.bin = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / ("python.exe" if os.name == "nt" else "python")
        self.stamp_file = self.folder / "run-stamp.json"
        self.unfinished_file = self.folder / "run-unfinished"

    def stamp(self) -> Stamp | None:
        try:
            told = json.loads(self.stamp_file.read_text(encoding="utf-8"))
            return Stamp(told["root"], told["digest"], tuple(told["extras"]), told["made_here"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_ready(self, digest: str, extras: Iterable[str]) -> bool:
        """Whether all of it is there: a moved folder or a removed Python makes it useless."""
        stamp = self.stamp()
        return stamp is not None and stamp.serves(str(self.root), digest, extras) and self.python.exists()

    def is_ours_to_delete(self) -> bool:
        """Whether we made it and it can't be trusted: half made, moved from elsewhere, without its Python."""
        stamp = self.stamp()
        if stamp is not None:
            return stamp.made_here and (stamp.root != str(self.root) or not self.python.exists())
        return self.unfinished_file.exists() and self.unfinished_file.read_text(encoding="utf-8") == "made"

    def clear_if_untrusted(self) -> None:
        if self.is_ours_to_delete():
            say(f"{self.folder} is unfinished or was moved: making it anew")
            self.folder.rename(self.root / f".venv.old-{os.getpid()}")  # a removal may be interrupted as well
        for left in self.root.glob(".venv.old-*"):
            shutil.rmtree(left)

    def make(self) -> None:
        """Make an empty environment, or adopt the one that is there. Unfinished until `finish`."""
        stamp = self.stamp()
        self.folder.mkdir(exist_ok=True)
        made_here = stamp.made_here if stamp else not any(self.folder.iterdir())
        self.unfinished_file.write_text("made" if made_here else "found", encoding="utf-8")
        self.stamp_file.unlink(missing_ok=True)
        if not self.python.exists():
            if not made_here:
                raise Failed(
                    f"{self.folder} holds no Python that works, and run.py did not make it: remove it."
                )
            say(f"making an environment in {self.folder} with Python {sys.version.split()[0]}")
            need_venv()
            run_quietly([sys.executable, "-m", "venv", str(self.folder)], "the environment could not be made")
        if subprocess.run(
            [self.python, "-m", "pip", "--version"], capture_output=True, check=False
        ).returncode:
            run_quietly([str(self.python), "-m", "ensurepip"], "the environment has no pip")

    def finish(self, digest: str, extras: Sequence[str]) -> None:
        made_here = self.unfinished_file.read_text(encoding="utf-8") == "made"
        told = {"root": str(self.root), "digest": digest, "extras": sorted(extras), "made_here": made_here}
        half = self.stamp_file.with_suffix(".half")
        half.write_text(json.dumps(told), encoding="utf-8")
        half.replace(self.stamp_file)
        self.unfinished_file.unlink()


def need_venv() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise Failed(
            f"this Python ({sys.executable}) has no {' and no '.join(missing)}, which are needed to make an "
            "environment.\nOn Debian and Ubuntu: sudo apt-get install python3-venv"
        )


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Two runs at once must not install into one folder; the second waits and then finds it done."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(root / ".venv.lock", "w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another run.py is installing here, waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def read_project(root: Path) -> tuple[dict[str, Any], str]:
    import tomllib  # not at the top: an older Python must get as far as our sentence about it

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    lock_file = root / "uv.lock"
    return project, lock_file.read_text(encoding="utf-8") if lock_file.exists() else ""


def prepare(root: Path, extras: Sequence[str]) -> Environment:
    """See that .venv holds Postroom with these extras, by the locked versions. Quick when it does already."""
    environment = Environment(root)
    project, lock_text = read_project(root)
    digest = digest_of(project, lock_text)
    if environment.is_ready(digest, extras):
        return environment
    with one_at_a_time(root):
        if environment.is_ready(digest, extras):
            return environment
        environment.clear_if_untrusted()
        before = environment.stamp()
        wanted = sorted({*extras, *(before.extras if before else ())})
        environment.make()
        install(environment, wanted, lock_text)
        environment.finish(digest, wanted)
    return environment


def install(environment: Environment, extras: Sequence[str], lock_text: str) -> None:
    import tomllib

    constraints = environment.folder / "run-constraints.txt"
    constraints.write_text("\n".join(constraints_from_lock(tomllib.loads(lock_text))), encoding="utf-8")
    what = f"{environment.root}[{','.join(extras)}]"
    base = [
        str(environment.python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ]
    say(f"installing postroom[{','.join(extras)}]; the first time fetches about 200 MB")
    try:
        run_quietly([*base, "--constraint", str(constraints), "--editable", what], "the install failed")
    except Failed as failure:
        if os.environ.get("CI") or isinstance(failure, NetworkMissing):
            raise
        say(f"{failure}\nThe locked versions can't be had for this Python; trying without them.")
        run_quietly([*base, "--editable", what], "the install failed")


def is_network_trouble(output: str) -> bool:
    return any(sign in output for sign in NETWORK_SIGNS)


def output_of(process: subprocess.Popen[str]) -> str:
    """Wait for a process and return what it printed; a sign of life every fifteen seconds."""
    started = time.monotonic()
    while True:
        try:
            return process.communicate(timeout=15)[0]
        except subprocess.TimeoutExpired:
            say(f"still at it, {time.monotonic() - started:.0f} s")


def run_quietly(command: Sequence[str], failure: str) -> None:
    """Run a step of the set-up; its output is shown only if it fails, and a long one is seen to live.

    Raises:
        Failed: it did not end with 0. A missing network is told from other troubles.
    """
    # A user-wide `pip install --user` setting or PYTHONPATH would put packages outside the environment.
    cleared = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**cleared, "PIP_USER": "0"},
    )
    try:
        output = output_of(process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode == 0:
        return
    lines = output.strip().splitlines()
    if is_network_trouble(output):
        shown = "\n".join([line.strip() for line in lines if "ERROR" in line][-3:])
        raise NetworkMissing(
            f"{failure}: no package index could be reached. Is this machine online, does it need a proxy "
            "(HTTPS_PROXY) or an index of its own (PIP_INDEX_URL)?\n"
            f"{shown}\nNothing half-made is trusted: run the same command again."
        )
    tail = "\n".join(lines[-25:])
    raise Failed(f"{tail}\n\n{failure} (last lines above).")


# ---------------------------------------------------------------- what is done


def become(command: Sequence[str | Path]) -> NoReturn:
    """Replace this process, so that signals and the exit code are the command's own."""
    words = [str(word) for word in command]
    sys.stdout.flush()
    if os.name == "nt":  # exec there returns to the shell at once
        sys.exit(subprocess.call(words))
    os.execv(words[0], words)


def checks(environment: Environment) -> list[tuple[str, list[str]]]:
    python = str(environment.python)
    return [
        ("format", [python, "-m", "ruff", "format", "--check", "."]),
        ("lint", [python, "-m", "ruff", "check", "."]),
        ("types", [python, "-m", "mypy"]),
        ("import contracts", [str(environment.bin / "lint-imports"), "--no-logo"]),
    ]


def run_steps(steps: Iterable[tuple[str, list[str]]]) -> list[str]:
    """Run every step, also after one failed: one run shows all there is to mend. Returns the failed ones."""
    failed = []
    for name, command in steps:
        say(name)
        if subprocess.call(command, cwd=ROOT) != 0:
            failed.append(name)
    return failed


def carry_out(plan: Plan, environment: Environment) -> int:
    python = str(environment.python)
    if plan.action == "postroom":
        # The script and not `-m`: that would put the folder one is in before all installed modules.
        become([environment.bin / "postroom", *plan.arguments])
    if plan.action == "bench":
        os.chdir(ROOT)
        become([python, "-m", "benchmarks", *plan.arguments])
    if plan.action == "campaign":
        os.chdir(ROOT)
        become([python, "-m", "pytest", "tests/campaigns", "--override-ini=timeout=3600", *plan.arguments])
    steps: list[tuple[str, list[str]]] = []
    if plan.action in ("check", "test"):
        steps = checks(environment)
    if plan.action == "test":
        steps.append(("tests", [python, "-m", "pytest", *plan.arguments]))
    failed = run_steps(steps)
    if failed:
        say(f"FAILED: {', '.join(failed)}")
    elif steps:
        say("all good")
    else:
        say(f"ready: {environment.folder}")
    return 1 if failed else 0


def newer_python() -> str | None:
    """Another Python on this machine that is new enough and starts, where `python3` itself is an old one."""
    for minor in range(14, OLDEST_PYTHON[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        # Version managers put a name on the path for versions that they then refuse to start.
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


def main(arguments: Sequence[str]) -> int:
    plan = understand(arguments)
    if plan.action == "usage":
        print(__doc__)
        return 0
    if sys.version_info < OLDEST_PYTHON:
        found = newer_python()
        if found:
            become([found, str(Path(__file__).resolve()), *arguments])
        raise Failed(f"Postroom needs Python 3.11 or later; {sys.executable} is {sys.version.split()[0]}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a pip must not outlive us; exec undoes this
    return carry_out(plan, prepare(ROOT, plan.extras))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failed as failure:
        say(str(failure))
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; the next run takes it up from the start")
        sys.exit(130)
