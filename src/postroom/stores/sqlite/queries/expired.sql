-- ?1: now, ?2: at most so many, ?3, ?4, ?5: begin, end and length of the store's own last standstill, by which leases
-- that it kept from being extended are lengthened. Running jobs whose lease ended, the longest ago first.
SELECT lease_expires_at, job_id FROM jobs
WHERE state = 'running' AND lease_expires_at <= ?1
    AND NOT (
        lease_expires_at > ?3 AND lease_expires_at - coalesce(lease_seconds, 0) < ?4
        AND lease_expires_at + ?5 > ?1
    )
ORDER BY lease_expires_at, job_id LIMIT ?2
