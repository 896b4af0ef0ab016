-- Checkpoints; one takes the place of what stands under the same kind and key.
INSERT OR REPLACE INTO checkpoints (
    seq, kind, key, is_final, epoch, input_digest, usage, error, value
) VALUES ?*9
