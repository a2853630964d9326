"""Internal. The reader of compiled programs: the text of a program, and its computation, communication and waiting."""
