-- ?1: seqs. A replay runs the items that failed anew.
DELETE FROM checkpoints
WHERE seq IN (SELECT value FROM json_each(?1)) AND kind = 'item' AND error IS NOT NULL
