"""`python -m hiddenfeed`: the same as the command `hiddenfeed`."""

from __future__ import annotations

import sys

from hiddenfeed.cli import main

if __name__ == "__main__":
    sys.exit(main())
