INSERT OR REPLACE INTO purged (job_id, at) VALUES ?*2
