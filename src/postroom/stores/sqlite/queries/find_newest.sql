-- ?1 to ?6: owner, states, kinds, sender, topic, queue; ?7: not before; ?8, ?9: below this age and id; ?10: limit.
SELECT created_at, job_id FROM jobs
WHERE
    (?1 IS NULL OR owner = ?1)
    AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR kind IN (SELECT value FROM json_each(?3)))
    AND (?4 IS NULL OR sender = ?4)
    AND (?5 IS NULL OR topic = ?5)
    AND (?6 IS NULL OR queue = ?6)
    AND created_at >= ?7 AND (created_at, job_id) < (?8, ?9)
ORDER BY created_at DESC, job_id DESC LIMIT ?10
