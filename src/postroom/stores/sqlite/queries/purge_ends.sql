-- ?1, ?2, ?3: after this end; ?4: up to this time; ?5: looks at so many. Ends that no picture of the last hour needs and
-- whose job has moved on or is gone.
DELETE FROM ends WHERE (at, seq, version) IN (
    SELECT at, seq, version FROM (
        SELECT at, seq, version, state FROM ends
        WHERE (at, seq, version) > (?1, ?2, ?3) AND at <= ?4
        ORDER BY at, seq, version LIMIT ?5
    ) AS old
    WHERE NOT EXISTS (
        SELECT 1 FROM jobs WHERE jobs.seq = old.seq AND jobs.state = old.state AND jobs.finished_at = old.at
    )
)
