"""The HTTP server of the web port, on the broker's own loop. It knows no broker.

server          the port: its connections, and how it stops
connection      one client: its socket, limits and deadlines
request_parser  what its bytes mean: HTTP/1.1 by httptools, its states as a table
request         what a resource is asked: parameters, query, body
response        what it answers
errors          refusals: a status and a reason
endpoint        one row of a table of endpoints: path, parameters, right, answer, handler
router          from a path to its row of the table, which it is given
long_answers    answers that take much memory: a few at a time
"""
