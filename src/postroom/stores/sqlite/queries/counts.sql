-- ?1: owner or NULL.
SELECT coalesce(sum(queued), 0), coalesce(sum(running), 0), coalesce(sum(succeeded), 0), coalesce(sum(failed), 0),
    coalesce(sum(cancelled), 0), max(claimed_at)
FROM owners WHERE ?1 IS NULL OR owner = ?1
