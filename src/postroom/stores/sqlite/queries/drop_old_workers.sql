-- ?1: seen before. Workers that nobody knows to be gone, and that hold nothing.
DELETE FROM workers WHERE seen_at < ?1 AND worker NOT IN (
    SELECT worker FROM jobs WHERE state = 'running' AND worker IS NOT NULL
)
