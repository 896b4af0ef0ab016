-- ?1: at most so many. Jobs whose lines are not as many as they say, or end in another state.
SELECT jobs.job_id, jobs.lines, jobs.state, count(journal.n), max(journal.n),
    (SELECT to_state FROM journal AS last WHERE last.seq = jobs.seq ORDER BY n DESC LIMIT 1) AS last_state
FROM jobs LEFT JOIN journal ON journal.seq = jobs.seq
GROUP BY jobs.seq
HAVING count(journal.n) <> jobs.lines OR max(journal.n) IS NOT jobs.lines - 1 OR last_state IS NOT jobs.state
LIMIT ?1
