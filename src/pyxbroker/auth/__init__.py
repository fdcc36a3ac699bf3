"""Who asks, and what they may do.

principal       who: what a connection or a request carries
authentication  how somebody proves it, by the providers: token, basic (htpasswd)
secrets         where keys are read from, and the one function that compares secrets
authorization   what: the rights, and the one function that asks for them
permissions     who has them: superusers, administrators, grants
"""
