import sys

from offline_gntd.cli import main

sys.exit(main())
