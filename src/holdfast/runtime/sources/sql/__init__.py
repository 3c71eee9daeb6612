"""Tables and queries of any SQLAlchemy database as sources, read in pages by cursor and key.

Read it in the order data flows: `database` (connections, and errors without secrets), `shape` (which columns there are,
and which make its order), `exact` (whether those can carry a cursor), `keyset` (what comes after a row), `source`
(pages and ranges), `final` (how far rows can be taken for final while others write), `writers` (what a database tells
about transactions in flight).
"""
