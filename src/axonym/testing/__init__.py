"""Test what the axes of a function mean."""
