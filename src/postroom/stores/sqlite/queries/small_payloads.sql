-- ?1: seqs, ?2: bytes. Payloads; of those above the size the keys and body are left out, to be fetched alone.
SELECT group_concat(CASE
    WHEN octet_length(body) + coalesce(octet_length(keys), 0) <= ?2 THEN json_array(seq, keys, body)
    ELSE json_array(seq)
END)
FROM payloads WHERE seq IN (SELECT value FROM json_each(?1))
