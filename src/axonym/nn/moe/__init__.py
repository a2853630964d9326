"""Mixtures of experts, and how they send tokens to the devices of their experts."""
