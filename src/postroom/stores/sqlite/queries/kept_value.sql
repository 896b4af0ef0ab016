SELECT value FROM kept WHERE name = ?1
