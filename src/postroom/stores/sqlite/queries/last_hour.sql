-- ?1: owner or NULL, ?2: an hour ago. Ends by state, and their seconds together.
SELECT state, count(*), sum(seconds) FROM ends
WHERE at > ?2 AND (?1 IS NULL OR owner = ?1) AND state IN ('succeeded', 'failed')
GROUP BY state
