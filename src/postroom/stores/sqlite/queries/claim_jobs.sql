-- ?1: seqs, ?2: worker, ?3: lease in seconds, ?4: now. Queued jobs as their claim leaves them: what `claimed` in
-- ledger.py gives to the worker, of which only that is written here which a claim changes.
UPDATE jobs SET
    state = 'running', version = version + 1, epoch = epoch + 1, attempts = attempts + 1, lines = lines + 1,
    worker = ?2, lease_seconds = ?3,
    lease_expires_at = ?4 + min(?3, coalesce(timeout_seconds, ?3), coalesce(stall_timeout_seconds, ?3)),
    beat_seq = 0, started_at = ?4, progress_at = ?4, start_by = NULL, reason = NULL,
    updated_at = max(updated_at, ?4), wake_at = NULL
WHERE seq IN (SELECT value FROM json_each(?1))
