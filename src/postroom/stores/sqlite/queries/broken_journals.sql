-- ?1: at most so many. Jobs whose lines are not as many as they say, or end in another state.
SELECT jobs.job_id, jobs.lines, jobs.state, 1 + count(journal.n), coalesce(max(journal.n), 0), coalesce(
        (SELECT to_state FROM journal AS last WHERE last.seq = jobs.seq ORDER BY n DESC LIMIT 1), 'queued'
    ) AS last_state
FROM jobs LEFT JOIN journal ON journal.seq = jobs.seq
GROUP BY jobs.seq
HAVING 1 + count(journal.n) <> jobs.lines OR coalesce(max(journal.n), 0) <> jobs.lines - 1
    OR last_state IS NOT jobs.state
LIMIT ?1
