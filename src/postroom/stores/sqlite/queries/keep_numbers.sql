-- Run before jobs are removed: a number stays given when the job or the line that had it is gone.
INSERT OR REPLACE INTO numbers (id, seq, line) SELECT
    0,
    max(coalesce((SELECT max(seq) FROM jobs), 0), coalesce((SELECT seq FROM numbers), 0)),
    max(coalesce((SELECT max(line) FROM journal), 0), coalesce((SELECT line FROM numbers), 0))
