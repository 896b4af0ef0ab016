-- As purge_ends.sql: the last end that it looks at, where it looks at as many as it may.
SELECT at, seq, version FROM ends
WHERE (at, seq, version) > (?1, ?2, ?3) AND at <= ?4
ORDER BY at, seq, version LIMIT 1 OFFSET ?5 - 1
