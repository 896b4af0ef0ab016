"""``python -m benchmarks``: see measures.main."""

from benchmarks.measures import main

main()
