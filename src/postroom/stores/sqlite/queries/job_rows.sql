-- A view of each connection's own: a job as one JSON array, its fields in the order of postroom.model.JOB_FIELDS.
-- Queries gather such rows into one text, because a thread may lose the interpreter lock at every row that it fetches.
CREATE TEMP VIEW job_rows AS
SELECT seq, job_id, rank, place, json_array(
        job_id, owner, kind, sender, topic, priority, queue, state, version, epoch, life, lines, attempts,
        max_attempts, crashes, crashes_in_row, interruptions, holds, done, total, failed_items, has_items,
        worker, lease_expires_at, lease_seconds, beat_seq, settled, cancel_requested, reason, created_at,
        updated_at, run_at, started_at, progress_at, finished_at, expires_at, start_by, timeout_seconds,
        stall_timeout_seconds, allow_failed_items, error, result_bytes, params, metadata, usage, kept
    ) AS row
FROM jobs
