"""Words and contracts that every floor shares."""
