"""Internal. Attention whose positions are split over devices: how devices share work and exchange keys."""
