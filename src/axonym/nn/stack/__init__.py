"""Layers applied one after another: alike ones with stacked parameters, and patterns of several kinds."""
