"""`python -m fedraa` is the command `fedraa`."""

import sys

from fedraa.cli import main

sys.exit(main())
