"""`python -m metasched` is the command `metasched`."""

import sys

from metasched.cli import main

sys.exit(main())
