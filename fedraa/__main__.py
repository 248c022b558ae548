"""`python -m fedraa` is the command `fedraa`."""

import sys

from fedraa.cli.main import main

sys.exit(main())
