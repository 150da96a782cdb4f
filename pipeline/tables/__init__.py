"""Rows in and out of files."""
