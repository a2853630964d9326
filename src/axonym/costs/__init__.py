"""What a mapping costs: communication, memory and time, in words of the model; and which mapping costs least."""
