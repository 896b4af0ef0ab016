-- ?1: at most so many. Jobs whose place in line, lane or dead-letter group is none that the store gives: such a job could
-- stand where no worker looks. Where exactly a job stands within its rank is nobody's to say again.
SELECT jobs.job_id, CASE
        WHEN lanes.lane IS NULL THEN 'stands in a lane that is not its queue''s and kind''s'
        WHEN jobs.state = 'failed' AND (jobs.error_code IS NULL OR jobs.error_group IS NULL)
            THEN 'failed and is in no group of dead letters'
        WHEN jobs.state <> 'failed' AND (jobs.error_code IS NOT NULL OR jobs.error_group IS NOT NULL)
            THEN 'is in a group of dead letters and did not fail'
        WHEN jobs.state <> 'queued' THEN 'is to wake, and is not queued'
        WHEN jobs.place IS NULL AND jobs.wake_at IS NOT jobs.run_at THEN 'is not in line and is not to wake when it is due'
        ELSE 'stands at a rank that is not its priority''s, or is not to move up'
    END
FROM jobs
LEFT JOIN lanes ON lanes.lane = jobs.lane AND lanes.queue = jobs.queue AND lanes.kind = jobs.kind
WHERE jobs.broken IS NULL AND (
    lanes.lane IS NULL
    OR (jobs.state = 'failed') IS NOT (jobs.error_code IS NOT NULL AND jobs.error_group IS NOT NULL)
    OR (jobs.state <> 'failed' AND (jobs.error_code IS NOT NULL OR jobs.error_group IS NOT NULL))
    OR (jobs.state <> 'queued' AND jobs.wake_at IS NOT NULL)
    OR (jobs.state = 'queued' AND CASE
        WHEN jobs.place IS NULL THEN jobs.wake_at IS NOT jobs.run_at
        ELSE jobs.rank NOT BETWEEN 0 AND CASE jobs.priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END
            OR (jobs.rank = 0) IS NOT (jobs.wake_at IS NULL)
    END)
)
LIMIT ?1
