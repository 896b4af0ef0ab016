-- ?1, ?2: ends up to here of jobs that succeeded, and of others; ?3: at most so many.
SELECT DISTINCT jobs.seq, jobs.job_id, jobs.owner, jobs.state
FROM ends JOIN jobs ON jobs.seq = ends.seq AND jobs.state = ends.state AND jobs.finished_at = ends.at
WHERE ends.at <= max(?1, ?2) AND ends.at <= CASE ends.state WHEN 'succeeded' THEN ?1 ELSE ?2 END
ORDER BY ends.at, jobs.job_id LIMIT ?3
