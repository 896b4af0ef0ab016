-- ?1: owner or NULL, ?2: an hour ago, ?3: at most so many. How long the latest jobs that succeeded took.
SELECT json_group_array(seconds) FROM (
    SELECT seconds FROM ends
    WHERE at > ?2 AND (?1 IS NULL OR owner = ?1) AND state = 'succeeded'
    ORDER BY at DESC LIMIT ?3
)
