"""Who asks, and what they may do.

principal       who: what a connection or a request carries
authentication  how somebody proves it, by the providers: token, openid (issuer, fetching), basic
                (htpasswd), certificates
claims          what a token claims, and signing_keys: which algorithms a key is for
secrets         where keys are read from, and the one function that compares secrets
authorization   what: the rights, and the one function that asks for them
permissions     who has them: superusers, administrators, grants
"""
