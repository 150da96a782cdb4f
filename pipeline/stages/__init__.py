"""One file per DVC stage: read, call, write."""
