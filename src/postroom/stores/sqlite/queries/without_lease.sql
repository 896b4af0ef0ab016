-- ?1: at most so many. Running jobs that nobody could ever find expired, and rows that were set aside.
SELECT job_id, 'it is running and has no lease' FROM jobs
WHERE state = 'running' AND lease_expires_at IS NULL
UNION ALL
SELECT job_id, broken FROM jobs WHERE broken IS NOT NULL
LIMIT ?1
