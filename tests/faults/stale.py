"""A worker's process that is stopped while it holds a job, and tries every write once it goes on.

``python -m tests.faults.stale KIND [--no-fence]``: claims a job, stops itself, and after SIGCONT writes all that a
worker can write under the epoch that it had; the answers go to the trace. Without the fence it tries a checkpoint only.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from postroom import lifecycle
from postroom.inbox import open_verbs
from postroom.model import Beat, Checkpoint, CheckpointKind, ErrorInfo, Outcome, OutcomeKind
from postroom.settings import load_settings
from postroom.stores.port import ClaimRequest


async def main(kind: str, *options: str) -> None:
    if "--no-fence" in options:
        lifecycle._fence = lambda job, epoch: None
    settings = load_settings()
    verbs = open_verbs(settings.store, settings)
    await verbs.open()
    request = ClaimRequest("stale", (kind,), lease_seconds=settings.lease_seconds)
    (lease,) = (await verbs.claim(request, wait_seconds=30)).leases
    job_id, epoch = lease.job.job_id, lease.job.epoch
    tell({"event": "claimed", "job": job_id, "epoch": epoch})
    os.kill(os.getpid(), signal.SIGSTOP)

    late = Checkpoint(CheckpointKind.ITEM, "0", value='"late"')
    step = Checkpoint(CheckpointKind.STEP, "late", value='"late"', input_digest="x")
    beats = {
        "heartbeat": Beat(job_id, epoch),
        "progress": Beat(job_id, epoch, done=1, output=('"late"',), usage={"late": 1.0}),
        "checkpoint": Beat(job_id, epoch, checkpoints=(late,)),
        "step": Beat(job_id, epoch, checkpoints=(step,)),
    }
    error = ErrorInfo("late", "too late")
    ends = {
        "result": Outcome(job_id, epoch, OutcomeKind.SUCCEEDED, checkpoints=(late,)),
        "success": Outcome(job_id, epoch, OutcomeKind.SUCCEEDED, result='"late"'),
        "failure": Outcome(job_id, epoch, OutcomeKind.FAILED, error=error),
        "hold": Outcome(job_id, epoch, OutcomeKind.HELD, after_seconds=1.0),
        "release": Outcome(job_id, epoch, OutcomeKind.RELEASED),
        "crash": Outcome(job_id, epoch, OutcomeKind.CRASHED, reason="process gone"),
        "cancelled": Outcome(job_id, epoch, OutcomeKind.CANCELLED),
    }
    if "--no-fence" in options:
        beats, ends = {"checkpoint": beats["checkpoint"]}, {}
    answers = {}
    for name, beat in beats.items():
        answers[name] = (await verbs.heartbeat([beat]))[0].status
    for name, outcome in ends.items():
        answers[name] = (await verbs.settle([outcome]))[0].status
    tell({"event": "answers", "job": job_id, "epoch": epoch, "answers": answers})
    await verbs.close()


def tell(line: dict[str, object]) -> None:
    file = os.open(os.environ["FAULTS_TRACE"], os.O_WRONLY | os.O_APPEND)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
