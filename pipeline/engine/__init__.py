"""Many requests through one model; token ids only, no text, no rows."""
