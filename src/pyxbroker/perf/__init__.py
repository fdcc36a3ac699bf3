"""The load generator of `pyxbroker perf`, a client of any broker that speaks Pulsar's protocol.

groups     what to run: groups of equal producers, and of equal consumers
link       one connection with its producers and consumers, around `load_generator`
load_run   one run of groups: opening, warm-up, samples, end
results    numbers of a run: lines for the terminal, JSON, HdrHistogram files
page       the numbers as an HTML page
scenario   groups from YAML files
"""
