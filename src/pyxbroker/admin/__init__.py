"""Admin REST, HTTP lookup and /metrics: the application of the web server (web/).

    endpoints         the table of endpoints: paths, parameters, rights, answers
    pulsar_endpoints  the endpoints of Pulsar, to compare with
    not_built         those of them that are refused: parts switched off or not built
    offload_policies  offload policies, which are stored without effect
    documents         docs/rest.md, the OpenAPI document, and the comparison with Pulsar
    answering         routes a request, checks its right, calls the handler, translates errors
    app               the application of one broker

The other files are resources. Each is imported with its first request, so that the number of
resources does not slow down the start.
"""
