-- ?1: job ids.
SELECT group_concat(row) FROM job_rows WHERE job_id IN (SELECT value FROM json_each(?1))
