-- The last number given to a job and to a line, also where what had it was removed.
SELECT
    max(coalesce((SELECT max(seq) FROM jobs), 0), coalesce((SELECT seq FROM numbers), 0)),
    max(coalesce((SELECT max(line) FROM journal), 0), coalesce((SELECT line FROM numbers), 0))
