-- ?1: before this, ?2: at most so many. Ends that no picture of the last hour needs and whose job has moved on or is gone.
DELETE FROM ends WHERE (at, seq, version) IN (
    SELECT at, seq, version FROM ends
    WHERE at <= ?1 AND NOT EXISTS (
        SELECT 1 FROM jobs WHERE jobs.seq = ends.seq AND jobs.state = ends.state AND jobs.finished_at = ends.at
    )
    ORDER BY at LIMIT ?2
)
