"""Admin REST, HTTP lookup and /metrics: a web server on the broker's own loop.

    server      the port: its connections, and how it stops
    connection  one client: HTTP/1.1 by httptools, its limits and deadlines
    request     what a resource is asked: parameters, query, body
    response    what it answers
    router      from a path to the function that answers it
    app         all resources of one broker, and what becomes of their errors

The other files are the resources. One is imported when its first request comes, so the number of
resources costs a start nothing.
"""
