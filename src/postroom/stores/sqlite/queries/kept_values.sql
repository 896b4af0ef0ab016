SELECT name, value FROM kept WHERE substr(name, 1, length(?1)) = ?1 ORDER BY name
