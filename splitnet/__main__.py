"""`python -m splitnet` is the command `splitnet`."""

import sys

from splitnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
