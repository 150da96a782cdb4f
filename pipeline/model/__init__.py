"""The tensors of one forward pass, and the files they come from."""
