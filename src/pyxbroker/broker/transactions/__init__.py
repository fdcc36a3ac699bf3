"""Transactions: coordinators, the buffers of topics, and the pending acknowledgements."""
