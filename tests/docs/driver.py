"""Runs the blocks of one page in a process of its own: started by test_code_blocks.py with a file of steps.

All Python blocks of the page share one namespace; all shell blocks share one shell. A step that fails ends it with a
message that names the page and the line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

READY_SECONDS = 40.0
UNTIL_SECONDS = 45.0
BLOCK_SECONDS = 60.0


class Wrong(Exception):
    """A block did not do what its page says."""


class Shell:
    """One bash for all shell blocks: variables and the working directory stay."""

    END = "-- end of the block --"

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, text: str) -> tuple[int, str]:
        """Exit code and output of a block; it stops at the first command that fails."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # The block runs in a subshell that ends at its first failure, and hands its variables back.
        script = (
            f"__vars=$(mktemp); ( set -e -o pipefail\n{text}\nset +e; declare -p > $__vars 2>/dev/null )\n"
            f"__code=$?\n"
            "source <(grep -E '^declare -(-|x) [A-Z_]+=' $__vars | grep -vE ' (PATH|PWD|OLDPWD|SHLVL|UID|PPID|_)=' "
            "| sed 's/^declare -\\(-\\|x\\) /export /') ; rm -f $__vars\n"
            f"echo; echo '{self.END}' $__code\n"
        )
        self.process.stdin.write(script)
        self.process.stdin.flush()
        lines: list[str] = []
        deadline = time.monotonic() + BLOCK_SECONDS
        for line in self.process.stdout:
            if line.startswith(self.END):
                return int(line.removeprefix(self.END)), "".join(lines).removesuffix("\n")
            lines.append(line)
            if time.monotonic() > deadline:
                break
        raise Wrong(f"the shell ended or hung; it said:\n{''.join(lines)}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)


class Page:
    """The state of one page's run."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.module = types.ModuleType("__main__")
        self.module.__file__ = str(Path("page.py").absolute())
        sys.modules["__main__"] = self.module
        self.shell = Shell()
        self.background: list[subprocess.Popen[bytes]] = []
        self.script_lines: list[str] = []

    def run(self, step: dict[str, Any]) -> None:
        marks = step["marks"]
        text = self.adapted(step["text"])
        if file := first(marks, "file"):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(text, encoding="utf-8")
        elif step["tag"] == "python":
            self.python(step, text)
        elif first(marks, "starts") is not None:
            self.start(text, first(marks, "starts") or ("/health" if " serve" in f" {text}" else ""))
        else:
            self.sh(marks, text)
            if first(marks, "ends") is not None:
                self.background.pop().wait(timeout=30)

    def adapted(self, text: str) -> str:
        """What a reader types, for this run: its own port, the installed command."""
        text = re.sub(r"\b(localhost|127\.0\.0\.1):8000\b", f"127.0.0.1:{self.port}", text)
        text = text.replace("port=8000", f"port={self.port}")
        text = re.sub(r"^python3 run\.py$", "postroom serve", text, flags=re.M)
        return re.sub(r"\bpython3 run\.py (?=[a-z])", "postroom ", text)

    def python(self, step: dict[str, Any], text: str) -> None:
        """Run a block in the page's namespace; its lines stand in a file at the page's line numbers."""
        wanted = step["line"] - 1
        self.script_lines += [""] * (wanted - len(self.script_lines)) + text.splitlines()
        Path("page.py").write_text("\n".join(self.script_lines), encoding="utf-8")
        code = compile("\n" * wanted + text, str(self.module.__file__), "exec")
        exec(code, vars(self.module))

    def start(self, text: str, path: str) -> None:
        words = text.strip().removesuffix("&").strip()
        log = open(f"background-{len(self.background)}.log", "wb")  # noqa: SIM115  it outlives this function
        process = subprocess.Popen(
            ["bash", "-c", f"exec {words}"], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.background.append(process)
        self.shell.run(f"LAST_PID={process.pid}")
        if path:
            self.wait_for_service(process, log.name, path)
        else:
            self.wait_for_worker(process, log.name)

    def wait_for_service(self, process: subprocess.Popen[bytes], log: str, path: str) -> None:
        url = f"http://127.0.0.1:{self.port}{path}"
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)  # nothing tells when a server listens
        raise Wrong(f"the service did not get ready:\n{Path(log).read_text(errors='replace')}")

    def wait_for_worker(self, process: subprocess.Popen[bytes], log: str) -> None:
        """A worker says when it is ready; what it says is in its log."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if Path(log).stat().st_size:
                return
            time.sleep(0.1)  # nothing else tells
        raise Wrong(f"the worker did not get ready:\n{Path(log).read_text(errors='replace')}")

    def sh(self, marks: list[list[str]], text: str) -> None:
        until = first(marks, "until")
        wanted = int(first(marks, "fails") or 0)
        deadline = time.monotonic() + UNTIL_SECONDS
        while True:
            code, output = self.shell.run(text)
            if until is None or is_in(until, output) or time.monotonic() > deadline:
                break
            time.sleep(0.2)  # the page says: ask again
        if code != wanted:
            raise Wrong(f"ended with {code} instead of {wanted}:\n{output}")
        for shown in [until, *every(marks, "shows")]:
            if shown is not None and not is_in(shown, output):
                raise Wrong(f"the output lacks {shown!r}:\n{output}")
        for kept in every(marks, "keeps"):
            self.keep(kept, output)

    def keep(self, kept: str, output: str) -> None:
        name, _, path = kept.partition("=")
        start = output.find("{")
        if start < 0:
            raise Wrong(f"the output is no JSON:\n{output}")
        value = json.JSONDecoder().raw_decode(output[start:])[0]
        for part in path.strip().split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        self.shell.run(f"{name.strip()}={value}")

    def close(self) -> None:
        self.shell.close()
        for process in reversed(self.background):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(self.background):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def logs(self) -> str:
        return "".join(
            f"\n--- {path}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(Path().glob("*.log"))
        )


def is_in(text: str, output: str) -> bool:
    """Whether an output shows a text, however either is spaced and spelled: JSON comes compact and indented.

    A text between slashes is a regular expression.
    """
    if len(text) > 2 and text[0] == text[-1] == "/":
        return re.search(text[1:-1], output) is not None
    return "".join(text.split()).lower() in "".join(output.split()).lower()


def first(marks: list[list[str]], name: str) -> str | None:
    return next((value for mark, value in marks if mark == name), None)


def every(marks: list[list[str]], name: str) -> list[str]:
    return [value for mark, value in marks if mark == name]


def main(steps_file: str, port: str) -> int:
    steps = json.loads(Path(steps_file).read_text(encoding="utf-8"))
    sys.path.insert(0, os.getcwd())
    page = Page(int(port))
    try:
        for step in steps:
            try:
                page.run(step)
            except BaseException as error:
                said = str(error) if isinstance(error, Wrong) else traceback.format_exc()
                sys.stdout.write(f"{step['place']}: {said}\n{page.logs()}\n")
                return 1
    finally:
        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
