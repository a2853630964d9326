"""Lay out trees of named arrays on a mesh, and compile functions of them."""
