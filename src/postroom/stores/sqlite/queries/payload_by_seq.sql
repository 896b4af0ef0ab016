SELECT body, keys FROM payloads WHERE seq = ?1
