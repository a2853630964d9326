"""The costs of mappings: communication, memory and time by axis and layer; and the search for the cheapest mapping."""
