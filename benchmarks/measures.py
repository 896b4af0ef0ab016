"""The measures: each returns figures by name, and says what it did in its docstring."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import apsw
import psutil

from benchmarks import floors, processes
from benchmarks.app import inbox as app
from postroom import Inbox, State
from postroom.settings import load_settings

Figures = dict[str, float]


def _inbox(store: str) -> Inbox:
    return Inbox(settings=load_settings({"store": store}, environ={}))


def _drafts(kind: str, count: int, **options: Any) -> list[dict[str, Any]]:
    return [{"kind": kind, "content": number, **options} for number in range(count)]


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _file(store: str) -> str:
    return store.removeprefix("sqlite:///")


def _sql(store: str, statement: str) -> Any:
    connection = apsw.Connection(_file(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return next(iter(connection.execute(statement)))
    finally:
        connection.close()


def submit(folder: Path) -> Figures:
    """Durable submits one by one from one client and from 16 at once, and the raw commits of the same minute."""
    floor = floors.single_commits(folder)

    async def run() -> tuple[float, float]:
        async with _inbox(f"sqlite:///{folder}/submit.db") as inbox:
            await inbox.submit_many(_drafts("noop", 50))

            async def one_by_one(seconds: float) -> int:
                count, end = 0, time.perf_counter() + seconds
                while time.perf_counter() < end:
                    await inbox.submit_many([{"kind": "noop", "content": count}])
                    count += 1
                return count

            begun = time.perf_counter()
            alone = await one_by_one(2.0) / (time.perf_counter() - begun)
            begun = time.perf_counter()
            together = sum(await asyncio.gather(*(one_by_one(2.0) for _ in range(16)))) / (
                time.perf_counter() - begun
            )
            return alone, together

    alone, together = asyncio.run(run())
    floor = median([floor, floors.single_commits(folder)])
    return {
        "raw commits/s": floor,
        "submits/s, one client": alone,
        "ratio, one client": alone / floor,
        "submits/s, 16 clients": together,
        "ratio, 16 clients": together / floor,
    }


def bulk(folder: Path) -> Figures:
    """10,000 jobs in one call, the best of five: drafts checked, rows, payloads and journal written."""

    async def run() -> list[float]:
        async with _inbox(f"sqlite:///{folder}/bulk.db") as inbox:
            await inbox.submit_many(_drafts("noop", 1000))
            rates = []
            for _ in range(5):
                drafts = _drafts("noop", 10_000)
                begun = time.perf_counter()
                await inbox.submit_many(drafts)
                rates.append(10_000 / (time.perf_counter() - begun))
            return rates

    rates = asyncio.run(run())
    return {"bulk submits/s, median": median(rates), "bulk submits/s, best": max(rates)}


async def _fill(store: str, kind: str, count: int, **options: Any) -> None:
    async with _inbox(store) as inbox:
        for start in range(0, count, 20_000):
            await inbox.submit_many(_drafts(kind, min(20_000, count - start), **options))


def _drain(
    store: str, jobs: int, workers: int = 1, folder: Path | None = None, url: str | None = None
) -> float:
    """Jobs a second from the first start to the last end of the last ``jobs`` jobs queued, by the store's own times."""
    finished = "SELECT count(*) FROM jobs WHERE kind = 'noop' AND finished_at > {since}"
    since = time.time()
    running = []
    try:
        for _ in range(workers):
            context = processes.worker(
                url or store, concurrency=500, log=folder / "worker.log" if folder else None
            )
            running.append(context)
            context.__enter__()
        deadline = time.monotonic() + 120
        while _sql(store, finished.format(since=since))[0] < jobs:
            if time.monotonic() > deadline:
                raise RuntimeError("the worker did not drain the queue in two minutes")
            time.sleep(0.2)
    finally:
        for context in running:
            context.__exit__(None, None, None)
    begun, ended = _sql(
        store,
        f"SELECT min(started_at), max(finished_at) FROM jobs WHERE kind = 'noop' AND finished_at > {since}",
    )
    return jobs / (ended - begun)


def drain(folder: Path) -> Figures:
    """20,000 no-op jobs by one worker process and by two, with results and journal, three times each."""
    floor = floors.pairs_in_batches(folder)
    one, two = [], []
    for number in range(3):
        for workers, rates in ((1, one), (2, two)):
            store = f"sqlite:///{folder}/drain-{number}-{workers}.db"
            asyncio.run(_fill(store, "noop", 20_000))
            rates.append(_drain(store, 20_000, workers, folder))
    return {
        "raw pairs/s in batches of 100": floor,
        "drained jobs/s, one worker": median(one),
        "drained jobs/s, two workers": median(two),
        "ratio to raw, one worker": median(one) / floor,
    }


def drain_http(folder: Path) -> Figures:
    """10,000 no-op jobs by one worker over HTTP from a service on SQLite."""
    store = f"sqlite:///{folder}/http.db"
    asyncio.run(_fill(store, "noop", 10_000))
    with processes.service(store, folder / "service.log") as url:
        return {"drained jobs/s over HTTP": _drain(store, 10_000, 1, folder, url)}


def backlog(folder: Path, size: int = 1_000_000) -> Figures:
    """The drain rate of 5,000 jobs alone, then beside a million queued, delayed and finished ones."""
    figures: Figures = {}
    alone = []
    for number in range(3):
        store = f"sqlite:///{folder}/alone-{number}.db"
        asyncio.run(_fill(store, "noop", 5_000))
        alone.append(_drain(store, 5_000, 1, folder))
    figures["drained jobs/s, 5 k queued"] = median(alone)
    store = f"sqlite:///{folder}/backlog.db"
    asyncio.run(_fill(store, "other", size))
    asyncio.run(_fill(store, "noop", size, run_at="2100-01-01T00:00:00Z"))
    asyncio.run(_fill(store, "gone", size))
    connection = apsw.Connection(_file(store))
    with connection:
        connection.execute(
            "UPDATE jobs SET state = 'succeeded', finished_at = updated_at, place = NULL, wake_at = NULL "
            "WHERE kind = 'gone'"
        )
    # The log of a million edits is this measure's own, and no worker's.
    connection.pragma("wal_checkpoint(truncate)")
    connection.close()
    beside = []
    for _ in range(3):
        asyncio.run(_fill(store, "noop", 5_000))
        beside.append(_drain(store, 5_000, 1, folder))
    label = f"{size / 1e6:g} M"
    figures[f"drained jobs/s, beside {label} queued of another kind, {label} delayed, {label} finished"] = (
        median(beside)
    )
    figures["ratio, beside to alone"] = median(beside) / median(alone)
    deep = f"sqlite:///{folder}/deep.db"
    asyncio.run(_fill(deep, "noop", size))
    rates = []
    for _ in range(3):
        done = _sql(deep, "SELECT count(*) FROM jobs WHERE state = 'succeeded'")[0]
        since = time.time()
        with processes.worker(deep, concurrency=500, log=folder / "worker.log"):
            while _sql(deep, "SELECT count(*) FROM jobs WHERE state = 'succeeded'")[0] < done + 10_000:
                time.sleep(0.1)
        count, begun, ended = _sql(
            deep, f"SELECT count(*), min(started_at), max(finished_at) FROM jobs WHERE finished_at > {since}"
        )
        rates.append(count / (ended - begun))
    figures[f"drained jobs/s, from {label} queued of the same kind"] = median(rates)
    figures["ratio, deep to alone"] = median(rates) / median(alone)
    return figures


async def _latencies(inbox: Inbox, times: int) -> list[float]:
    found = []
    for number in range(times):
        await asyncio.sleep(0.03)
        begun = time.monotonic()
        receipts = await inbox.submit_many([{"kind": "stamp", "content": number}])
        job = await inbox.wait(receipts[0].job_id, timeout_seconds=10)  # type: ignore[union-attr]
        assert job.state is State.SUCCEEDED, job
        found.append((job.result - begun) * 1000)
    return found


def pickup(folder: Path, times: int = 200) -> Figures:
    """From before a submit to the handler's first line: in one process, across two on one file, and through HTTP."""
    figures: Figures = {}

    async def inside() -> list[float]:
        own = _inbox(f"sqlite:///{folder}/pickup-1.db")
        own.handlers = app.handlers
        async with own, own.worker(concurrency=8):
            return await _latencies(own, times)

    async def from_outside(url: str) -> list[float]:
        async with _inbox(url) as inbox:
            await inbox.wait((await inbox.submit("stamp", 0)).job_id, timeout_seconds=20)
            return await _latencies(inbox, times)

    def note(name: str, found: list[float]) -> None:
        figures[f"pick-up ms p50, {name}"] = median(found)
        figures[f"pick-up ms p95, {name}"] = _percentile(found, 0.95)

    floor = floors.two_commits_after_a_pause(folder)
    figures["raw: two commits after a pause, ms p50"] = median(floor)
    figures["raw: two commits after a pause, ms p95"] = _percentile(floor, 0.95)
    note("one process", asyncio.run(inside()))
    store = f"sqlite:///{folder}/pickup-2.db"
    with processes.worker(store, concurrency=8, log=folder / "worker.log"):
        note("two processes on one file", asyncio.run(from_outside(store)))
    store = f"sqlite:///{folder}/pickup-3.db"
    with (
        processes.service(store, folder / "service.log") as url,
        processes.worker(url, concurrency=8, log=folder / "worker.log"),
    ):
        note("through HTTP", asyncio.run(from_outside(url)))
    return figures


def thousand_calls(folder: Path) -> Figures:
    """1,000 calls of one second in one worker process, from the first start to the last end, and all in all."""
    store = f"sqlite:///{folder}/calls.db"
    bare = floors.thousand_sleeps()
    spans = []
    with processes.worker(store, concurrency=1000, log=folder / "worker.log"):

        async def run() -> None:
            async with _inbox(store) as inbox:
                await inbox.wait((await inbox.submit("noop", 0)).job_id, timeout_seconds=20)
                for _ in range(3):
                    drafts = _drafts("call", 1000)
                    begun = time.perf_counter()
                    receipts = await inbox.submit_many(drafts)
                    submitted = time.perf_counter()
                    last = receipts[-1].job_id  # type: ignore[union-attr]
                    await inbox.wait(last, timeout_seconds=60)
                    while (await inbox.stats()).states["succeeded"] % 1000 != 1:  # noqa: ASYNC110 - counts have no hint
                        await asyncio.sleep(0.002)
                    ended = time.perf_counter()
                    spans.append((ended - submitted, ended - begun))

        asyncio.run(run())
    return {
        "bare event loop, s": bare,
        "1,000 calls of 1 s after the submit, s": median([a for a, _ in spans]),
        "with the submit, s": median([b for _, b in spans]),
    }


def idle_worker(folder: Path) -> Figures:
    """Memory of an idle worker and its helper process, and the time from its start to its first claim."""
    store = f"sqlite:///{folder}/idle.db"
    asyncio.run(_fill(store, "stamp", 1))
    ready = []
    for number in range(5):
        asyncio.run(_fill(store, "stamp", 1)) if number else None
        before = _sql(store, "SELECT count(*) FROM jobs WHERE state = 'succeeded'")[0]
        begun, wall = time.monotonic(), time.time()
        with processes.worker(store, concurrency=8, log=folder / "worker.log") as child:
            while _sql(store, "SELECT count(*) FROM jobs WHERE state = 'succeeded'")[0] == before:
                time.sleep(0.005)
            ready.append(_sql(store, "SELECT max(started_at) FROM jobs")[0] - wall)
            time.sleep(1.5)
            tree = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
            sizes = [p.memory_info().rss / 2**20 for p in tree]
        del begun
    return {
        "idle worker MiB": sizes[0],
        "with its helper process MiB": sum(sizes),
        "start to first claim, s": median(ready),
    }


def imports(folder: Path) -> Figures:
    """``import postroom`` and ``from postroom import Inbox`` in a new process, less the time of an empty one."""

    def seconds(code: str) -> float:
        times = []
        for _ in range(7):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - begun)
        return median(times)

    empty = seconds("pass")
    return {
        "import postroom, s": seconds("import postroom") - empty,
        "with Inbox, s": seconds("from postroom import Inbox") - empty,
    }


def after_a_kill(folder: Path) -> Figures:
    """``kill -9`` of a worker, until another runs its job again, at default settings."""
    spans = []
    for number in range(3):
        store, marks = f"sqlite:///{folder}/kill-{number}.db", folder / f"marks-{number}"
        asyncio.run(_fill_one(store, "hang", str(marks)))
        with (
            processes.worker(store, log=folder / "worker.log"),
            processes.worker(store, log=folder / "worker.log"),
        ):
            first = _mark(marks, 1)
            killed = time.monotonic()
            os.kill(int(first.split()[0]), signal.SIGKILL)
            spans.append(float(_mark(marks, 2).split()[1]) - killed)
    return {"kill -9 to running again, s": median(spans), "of these, backoff of a crash, s": 2.0}


async def _fill_one(store: str, kind: str, content: str) -> None:
    async with _inbox(store) as inbox:
        await inbox.submit(kind, content)


def _mark(path: Path, number: int) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= number:
            return lines[number - 1]
        time.sleep(0.005)
    raise RuntimeError(f"nothing ran for the {number}. time within two minutes")


MEASURES: dict[str, Callable[[Path], Figures]] = {
    "submit": submit,
    "bulk": bulk,
    "drain": drain,
    "drain-http": drain_http,
    "pickup": pickup,
    "thousand-calls": thousand_calls,
    "idle-worker": idle_worker,
    "imports": imports,
    "after-a-kill": after_a_kill,
    "backlog": backlog,
}

AIMS: dict[str, tuple[str, float]] = {
    "ratio, one client": (">=", 0.5),
    "ratio, 16 clients": (">=", 1.0),
    "bulk submits/s, median": (">=", 50_000),
    "drained jobs/s, one worker": (">=", 8_000),
    "drained jobs/s over HTTP": (">=", 4_000),
    "pick-up ms p95, one process": ("<=", 3.0),
    "pick-up ms p95, two processes on one file": ("<=", 15.0),
    "pick-up ms p95, through HTTP": ("<=", 10.0),
    "1,000 calls of 1 s after the submit, s": ("<=", 1.05),
    "with its helper process MiB": ("<=", 60.0),
    "start to first claim, s": ("<=", 0.6),
    "import postroom, s": ("<=", 0.15),
    "ratio, beside to alone": (">=", 0.9),
    "ratio, deep to alone": (">=", 0.9),
}


def main() -> None:
    """Run the named measures (all unless named), print one table, and keep it beside this file."""
    import argparse
    import platform
    import tempfile
    from datetime import UTC, datetime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"measures: {', '.join(MEASURES)}; all unless named")
    parser.add_argument("--folder", help="where the database files go; a temporary folder unless given")
    parser.add_argument("--out", help="write the figures as JSON to this file")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(MEASURES)
    if unknown:
        parser.error(f"no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    found: dict[str, Figures] = {}
    for name in chosen.names or MEASURES:
        with tempfile.TemporaryDirectory(prefix="postroom-bench-", dir=chosen.folder) as place:
            folder = Path(place)
            print(f"{name}: {(MEASURES[name].__doc__ or '').splitlines()[0]}", flush=True)
            found[name] = {"fsync ms": floors.fsync_milliseconds(folder), **MEASURES[name](folder)}
            for label, figure in found[name].items():
                _print(label, figure)
    kept = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "sqlite": apsw.sqlite_lib_version(),
        "figures": found,
    }
    if chosen.out:
        Path(chosen.out).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _print(label: str, figure: float) -> None:
    shown = f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"
    aim = AIMS.get(label)
    verdict = ""
    if aim is not None:
        is_met = figure >= aim[1] if aim[0] == ">=" else figure <= aim[1]
        verdict = f"   aim {aim[0]} {aim[1]:,g}: {'met' if is_met else 'MISSED'}"
    print(f"  {label:<70} {shown:>10}{verdict}", flush=True)


if __name__ == "__main__":
    main()
