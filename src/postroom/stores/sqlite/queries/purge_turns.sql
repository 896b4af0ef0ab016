-- Places that the clock has passed say nothing any more.
DELETE FROM turns WHERE place <= (
    SELECT place FROM clocks WHERE clocks.queue = turns.queue AND clocks.rank = turns.rank
)
