-- ?1: workers.
DELETE FROM workers WHERE worker IN (SELECT value FROM json_each(?1))
