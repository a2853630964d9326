"""What only tells: checks and pictures of layouts."""
