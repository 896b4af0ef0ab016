-- ?1: owner or NULL, ?2: now.
SELECT count(*) FROM jobs
WHERE state = 'running' AND (lease_expires_at IS NULL OR lease_expires_at <= ?2) AND (?1 IS NULL OR owner = ?1)
