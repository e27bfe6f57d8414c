import sys

from offline_gntd.command_line import main

sys.exit(main())
