"""click commands, a file per group; each adds options and help and calls the floor below."""
