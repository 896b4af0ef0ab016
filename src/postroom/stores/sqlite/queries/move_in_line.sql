-- Places in line that jobs got without a change of their state: they became due, or waited long enough to move up.
WITH new (seq, rank, place, wake_at) AS (VALUES ?*4)
UPDATE jobs SET rank = new.rank, place = new.place, wake_at = new.wake_at
FROM new WHERE jobs.seq = new.seq
