-- Jobs as a change left them. What a job is (its id, owner, kind, queue, ...) never changes and is not among these.
-- The versions were compared in this transaction.
WITH new (
    seq, state, version, epoch, life, lines, attempts, max_attempts, crashes, crashes_in_row, interruptions,
    holds, done, total, failed_items, worker, lease_expires_at, lease_seconds, beat_seq, settled,
    cancel_requested, reason, updated_at, run_at, started_at, progress_at, finished_at, expires_at,
    start_by, timeout_seconds, stall_timeout_seconds, allow_failed_items, error, result_bytes, usage, kept, rank,
    place, wake_at, error_code, error_group
) AS (VALUES ?*41)
UPDATE jobs SET
    state = new.state, version = new.version, epoch = new.epoch, life = new.life, lines = new.lines,
    attempts = new.attempts, max_attempts = new.max_attempts, crashes = new.crashes,
    crashes_in_row = new.crashes_in_row, interruptions = new.interruptions, holds = new.holds,
    done = new.done, total = new.total, failed_items = new.failed_items, worker = new.worker,
    lease_expires_at = new.lease_expires_at, lease_seconds = new.lease_seconds, beat_seq = new.beat_seq,
    settled = new.settled, cancel_requested = new.cancel_requested, reason = new.reason,
    updated_at = new.updated_at, run_at = new.run_at, started_at = new.started_at,
    progress_at = new.progress_at, finished_at = new.finished_at, expires_at = new.expires_at,
    start_by = new.start_by, timeout_seconds = new.timeout_seconds,
    stall_timeout_seconds = new.stall_timeout_seconds, allow_failed_items = new.allow_failed_items,
    error = new.error, result_bytes = new.result_bytes, usage = new.usage, kept = new.kept, rank = new.rank,
    place = new.place, wake_at = new.wake_at, error_code = new.error_code, error_group = new.error_group
FROM new WHERE jobs.seq = new.seq
