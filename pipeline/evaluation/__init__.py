"""Taking answers apart, scoring, aggregating, judging."""
