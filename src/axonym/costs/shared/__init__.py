"""Internal. Modules that both readers of programs share: events, rows, layers, links, overlap and arguments."""
