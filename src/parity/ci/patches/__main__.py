"""`python -m parity.ci.patches`: the wrapper of one test."""

import sys

from parity.ci.patches.wrapper import main

sys.exit(main())
