"""Operations on named arrays, one file per kind."""
