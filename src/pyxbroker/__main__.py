"""`python -m pyxbroker` is the command `pyxbroker`."""

from pyxbroker.cli import main

if __name__ == "__main__":
    main()
