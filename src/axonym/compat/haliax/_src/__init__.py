"""Private modules of Haliax that programs import from: aliases of public names, and a few private helpers.

They are here so that such programs run; Axonym itself does not import from them.
"""
