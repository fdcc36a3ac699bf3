"""Admin REST, HTTP lookup and /metrics: what the web server (web/) answers.

    endpoints       the table of what there is: paths, parameters, rights, answers
    pulsar_endpoints  what Pulsar has: the measure of what is there
    not_built       what of that is refused: what is off, and what is not built
    offload_policies  those of namespaces and topics, which are stored and have no effect
    documents       the table as docs/rest.md, as OpenAPI, and beside Pulsar's
    answering       from a request to its answer: route, right, handler, and errors
    app             all resources of one broker

The other files are the resources. One is imported when its first request comes, so the number of
resources costs a start nothing.
"""
