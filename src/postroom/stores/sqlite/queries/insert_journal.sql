-- Lines of the journal, each under the next number of the whole journal.
INSERT INTO journal (
    line, seq, n, at, event, from_state, to_state, epoch, attempt, life, actor, reason, data
) VALUES ?*13
