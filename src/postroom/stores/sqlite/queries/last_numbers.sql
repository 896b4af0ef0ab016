-- The last number given to a job and to a line.
SELECT coalesce((SELECT max(seq) FROM jobs), 0), coalesce((SELECT max(line) FROM journal), 0)
