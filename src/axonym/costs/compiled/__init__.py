"""Internal. The reader of compiled programs: the text of a program, what it computes, sends and waits for."""
