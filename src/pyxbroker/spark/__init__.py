"""PySpark reads and writes Pulsar's topics, without a jar. It needs no broker of ours."""
