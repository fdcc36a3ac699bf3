"""Who asks, and what they may do.

principal      who: what a connection or a request carries
authorization  what: the rights, and the one function that checks them
"""
