"""Compatibility layers that run code written for other libraries on Axonym."""
