"""Layers under which code that was written for other libraries runs on Axonym."""
