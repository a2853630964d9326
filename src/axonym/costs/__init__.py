"""What a mapping costs: communication, memory and time, in words of the model."""
