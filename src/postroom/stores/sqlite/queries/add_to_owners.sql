-- What a transaction added to each owner's counts, and when a job of the owner was claimed last.
INSERT INTO owners (owner, queued, running, succeeded, failed, cancelled, claimed_at) VALUES ?*7
ON CONFLICT (owner) DO UPDATE SET
    queued = queued + excluded.queued,
    running = running + excluded.running,
    succeeded = succeeded + excluded.succeeded,
    failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled,
    claimed_at = coalesce(excluded.claimed_at, claimed_at)
