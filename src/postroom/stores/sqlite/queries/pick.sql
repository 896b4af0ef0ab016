-- ?1: lanes, ?2: at most so many, ?3: now. The first jobs of some lanes: from the head of each lane as many as could be
-- needed, in the order of the line, and of these the first. Those that should have started by now are left to the sweep.
-- Two texts: the rows, and beside each its number and place.
SELECT group_concat(row), group_concat(json_array(seq, rank, place, job_id))
FROM job_rows WHERE seq IN (
    SELECT heads.seq
    FROM json_each(?1) AS lanes
    JOIN jobs AS heads ON heads.seq IN (
        SELECT seq FROM jobs
        WHERE lane = lanes.value AND state = 'queued' AND place IS NOT NULL
            AND (start_by IS NULL OR start_by > ?3)
        ORDER BY rank, place, job_id LIMIT ?2
    )
    ORDER BY heads.rank, heads.place, heads.job_id LIMIT ?2
)
