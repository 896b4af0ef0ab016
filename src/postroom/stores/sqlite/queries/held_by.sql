-- ?1: workers, ?2: at most so many. Running jobs that they hold.
SELECT coalesce(lease_expires_at, 0), job_id FROM jobs
WHERE state = 'running' AND worker IN (SELECT value FROM json_each(?1))
ORDER BY lease_expires_at, job_id LIMIT ?2
