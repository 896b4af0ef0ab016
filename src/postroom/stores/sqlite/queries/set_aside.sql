-- Jobs that cannot be read leave the line, with the reason: the others go on.
WITH new (seq, broken) AS (VALUES ?*2)
UPDATE jobs SET broken = new.broken, place = NULL, wake_at = NULL
FROM new WHERE jobs.seq = new.seq
