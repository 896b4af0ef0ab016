-- ?1: workers that are gone for good, of which those go that hold nothing any more.
DELETE FROM workers WHERE worker IN (
    SELECT value FROM json_each(?1)
    EXCEPT
    SELECT worker FROM jobs WHERE state = 'running'
) RETURNING worker
