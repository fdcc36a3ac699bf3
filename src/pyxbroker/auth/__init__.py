"""Authentication and authorization.

principal       the role of a connection or a request
authentication  verifies credentials by the providers: token, openid (issuer, fetching), basic
                (htpasswd), certificates
claims          the claims of a token; signing_keys: the algorithms of a key
secrets         reads keys, and has the one function that compares secrets
authorization   the rights, and the one function that checks them
permissions     the holders of rights: superusers, administrators, grants
"""
