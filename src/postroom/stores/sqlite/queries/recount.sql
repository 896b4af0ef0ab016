-- Owners whose counts are not those of their jobs.
SELECT owner, sum(queued), sum(running), sum(succeeded), sum(failed), sum(cancelled) FROM (
    SELECT owner, queued, running, succeeded, failed, cancelled FROM owners
    UNION ALL
    SELECT owner, -(state = 'queued'), -(state = 'running'), -(state = 'succeeded'), -(state = 'failed'),
        -(state = 'cancelled')
    FROM jobs
)
GROUP BY owner
HAVING sum(queued) <> 0 OR sum(running) <> 0 OR sum(succeeded) <> 0 OR sum(failed) <> 0 OR sum(cancelled) <> 0
