"""All that knows of meshes and layouts, but not of trees."""
