"""``python -m marlogue``: the command line."""

import sys

from marlogue.cli import main

if __name__ == "__main__":
    sys.exit(main())
