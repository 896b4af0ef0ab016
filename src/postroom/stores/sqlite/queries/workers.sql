SELECT worker, kinds, queues, concurrency, host, pid, started_at, seen_at, is_local, version, lock
FROM workers ORDER BY started_at, worker
