-- ?1: now, ?2: at most so many. Queued jobs that should have started by now.
SELECT start_by, job_id FROM jobs
WHERE start_by <= ?1 AND state = 'queued'
ORDER BY start_by, job_id LIMIT ?2
