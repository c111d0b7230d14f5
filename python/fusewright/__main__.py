"""`python -m fusewright` is the command `fusewright`."""

import sys

from fusewright.commands.cli import main

sys.exit(main())
