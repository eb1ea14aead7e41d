"""`python -m everstep.cli`, for where the command is not on the path."""

from everstep.cli.main import main

main()
