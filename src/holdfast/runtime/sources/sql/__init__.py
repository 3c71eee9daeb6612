"""Tables and queries of any SQLAlchemy database as sources, read in pages by cursor and key.

In the order of the data flow: `database` (connections, and errors without secrets), `columns` (the columns, which of
them make the order, and whether those can carry a cursor), `source` (rows after a row, pages and partitions), `horizon`
(how far rows are final while others write, and transactions in flight).
"""
