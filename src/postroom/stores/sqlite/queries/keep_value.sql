INSERT OR REPLACE INTO kept (name, value) VALUES (?1, ?2)
