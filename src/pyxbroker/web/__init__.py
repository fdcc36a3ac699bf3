"""The HTTP server of the web port, on the broker's event loop. Independent of the broker.

server          the port: its connections and its shutdown
connection      one client: its socket, limits and deadlines
request_parser  HTTP/1.1 by httptools, with a table of states
request         a request: parameters, query, body
response        an answer
errors          refusals: a status and a reason
endpoint        one row of a table of endpoints: path, parameters, right, answer, handler
router          maps a path to a row of the table
long_answers    limits on the memory of long answers
"""
