-- New jobs, with their place in line.
INSERT INTO jobs (
    seq, job_id, owner, kind, sender, topic, priority, queue, state, version, epoch, life, lines, attempts,
    max_attempts, crashes, crashes_in_row, interruptions, holds, done, total, failed_items, has_items,
    worker, lease_expires_at, lease_seconds, beat_seq, settled, cancel_requested, reason, created_at,
    updated_at, run_at, started_at, progress_at, finished_at, expires_at, start_by, timeout_seconds,
    stall_timeout_seconds, allow_failed_items, error, result_bytes, params, metadata, usage, kept, lane, rank,
    place, wake_at, idempotency_key, body_digest
) VALUES ?*53
