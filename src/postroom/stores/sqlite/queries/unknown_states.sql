-- ?1: the states there are, ?2: at most so many.
SELECT job_id, state FROM jobs WHERE state NOT IN (SELECT value FROM json_each(?1)) LIMIT ?2
