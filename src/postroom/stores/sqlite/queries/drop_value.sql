DELETE FROM kept WHERE name = ?1
