"""Planted bugs: do the tests notice a broken line of ours? `make mutants`; docs/reliability.md says
what is done.

sources     the text of a file as tokens and statements, in the three languages
operators   what may be broken, as data: each operator gives the edits that it has for a file
draw        which of them are tried: COUNT by a seed
calls       which functions a test calls, in whatever process; recorded once
trees       copies of the tree, one for each worker, and what is built in them
judge       which tests run for a mutant, and what becomes of it
named       bugs that passed all tests once; they are tried always
kept        mutants that are equivalent, or known not to be caught, with the reason
results     what was found so far, and the table
"""
