"""Seals: short digests in the journal by which ``postroom verify`` finds what other hands changed. Pure.

The journal alone gives most of a row: its state, its counts, its times. Some of it no line tells (how often a worker
beat, what it used, which limits its handler brought), and nothing would tell of a line that was changed itself. So the
line that ends a run carries two digests: ``row`` of all that the row holds once the line is written and until the next
claim, and ``seal`` of the line itself. Lines written during a run carry ``seal`` alone, since beats go on changing the
row. A claim's line is written by the store and carries none: all that it tells is sealed by the line that ends the run.

Checkpoints come and go during a run without a line each, so the row carries a sum over all of them (``kept``), which
each write brings up to date by what it adds and replaces.

A seal is no signature: whoever knows how it is made can make it anew. It finds the hand that slipped, the script that
"only fixed one column", and the disk that lost a bit.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from postroom.model import Checkpoint, CheckpointKind, Job, Line, State

ROW = "row"
SEAL = "seal"

NUMBERS = (
    "version epoch life lines attempts max_attempts crashes crashes_in_row interruptions holds done total "
    "failed_items lease_expires_at lease_seconds beat_seq cancel_requested updated_at run_at started_at progress_at "
    "finished_at expires_at start_by timeout_seconds stall_timeout_seconds allow_failed_items result_bytes"
).split()
TEXTS = "job_id state worker settled reason error usage kept".split()
"""What a row seal covers. The other fields never change after submit and are in the digest of the first line."""

_64_BITS = 2**64 - 1
_NAN = float("nan")
_NESTED = (dict, list, tuple)
_numbers = attrgetter(*NUMBERS)
_texts = attrgetter(*TEXTS)
_pack = struct.Struct(f"<{len(NUMBERS)}d").pack
_pack_line = struct.Struct("<6d").pack
_encode = json.JSONEncoder(separators=(",", ":")).encode


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=6).hexdigest()


def _join(texts: tuple[str | None, ...]) -> bytes:
    """NUL, which no text of ours has, parts them; None and "" differ."""
    return "\x00".join(["\x01" if text is None else text for text in texts]).encode()


def row_seal(job: Job) -> str:
    """The digest of all that a job's row holds and that changes in its life."""
    numbers = [_NAN if number is None else number for number in _numbers(job)]
    return _hash(_pack(*numbers) + _join(_texts(job)))


def line_seal(job_id: str, started_at: float | None, line: Line) -> str:
    """The digest of one line. Of its data all but the seal itself.

    Args:
        job_id: the job it belongs to.
        started_at: when the run started that the line was written in or ends; None for a line outside a run.
        line: the line, with or without its seal.
    """
    told = line.data
    if SEAL in told:
        told = {name: value for name, value in told.items() if name != SEAL}
    started = _NAN if started_at is None or line.from_state is not State.RUNNING else started_at
    numbers = _pack_line(line.n, line.at, line.epoch, line.attempt, line.life, started)
    states = (line.event, line.from_state, line.to_state)
    return _hash(numbers + _join((job_id, *states, line.actor, line.reason, canonical(told))))


def kept_after(kept: str | None, gone: Iterable[Checkpoint], new: Iterable[Checkpoint]) -> str | None:
    """The sum over a job's checkpoints after some were replaced or removed and some added; None where there is none.

    Two numbers of 16 hex digits: over values and steps, and over the errors of items, which a replay removes.
    """
    sums = [0, 0] if kept is None else [int(kept[:16], 16), int(kept[16:], 16)]
    for checkpoint in gone:
        sums[_part(checkpoint)] -= _mark(checkpoint)
    for checkpoint in new:
        sums[_part(checkpoint)] += _mark(checkpoint)
    return _kept(*sums)


def kept_without_errors(kept: str | None) -> str | None:
    """The sum once the errors of items are removed."""
    return None if kept is None else _kept(int(kept[:16], 16), 0)


def _kept(values: int, errors: int) -> str | None:
    values, errors = values & _64_BITS, errors & _64_BITS
    return f"{values:016x}{errors:016x}" if values or errors else None


def _part(checkpoint: Checkpoint) -> int:
    return int(checkpoint.error is not None and checkpoint.kind is CheckpointKind.ITEM)


def _mark(c: Checkpoint) -> int:
    texts = (c.kind, c.key, c.value, c.error, c.input_digest, c.usage, f"{c.is_final:d}{c.epoch}")
    return int.from_bytes(blake2b(_join(texts), digest_size=8).digest(), "big")


def canonical(told: Mapping[str, Any]) -> str:
    """A line's data as the text that digests are made of, the same before and after it was kept as JSON."""
    for value in told.values():
        if isinstance(value, _NESTED):
            return _encode(told)
    return repr(told)  # flat: quicker, and as stable


def unsealed(told: Mapping[str, Any]) -> dict[str, Any]:
    """A line's data without what is only there for ``verify``: what people want to read."""
    return {name: value for name, value in told.items() if name not in (ROW, SEAL, "digest", "key")}
