INSERT OR REPLACE INTO workers (
    worker, kinds, queues, concurrency, host, pid, started_at, seen_at, is_local, version, lock
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
