"""`python -m fusewright` is the command `fusewright`."""

import sys

from fusewright.cli import main

sys.exit(main())
