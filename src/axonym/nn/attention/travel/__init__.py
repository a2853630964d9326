"""Internal. Attention whose positions are split over devices: how devices share it, and how keys travel."""
