"""Internal. How one array is sharded on a mesh: layouts, modes of mesh axes, mappings. It knows nothing of trees."""
