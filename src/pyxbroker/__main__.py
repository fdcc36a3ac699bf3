"""The command `pyxbroker`, which is also `python -m pyxbroker`."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from pyxbroker.cli import main as main

if __name__ == "__main__":
    main()
