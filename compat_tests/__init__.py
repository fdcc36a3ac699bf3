"""Black-box tests: unmodified clients and raw sockets against a real broker process."""
