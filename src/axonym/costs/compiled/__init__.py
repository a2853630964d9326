"""Internal. The reader of compiled programs: their text, and what it computes, sends and waits for."""
