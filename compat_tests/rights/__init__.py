"""What each role may do: each endpoint and command asked by each, of Apache Pulsar and of us.

scene     the roles, what each has, and the settings of a broker that asks for rights
requests  what a role is told by REST
commands  what a role is told by the protocol
record    what Apache Pulsar told; `python -m compat_tests.rights` asks it
"""
