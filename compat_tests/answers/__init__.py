"""The answers of the admin REST, asked of a broker in one manner: each endpoint with good input,
bad input, missing parents, a wrong method and wrong bodies.

cases.py has what is asked, ask.py asks a broker, compare.py compares two brokers' answers, and
differences.py is the closed list of where and why they differ. `python -m compat_tests.answers`
asks a broker and writes what it said.
"""
