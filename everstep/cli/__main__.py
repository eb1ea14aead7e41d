"""`python -m everstep.cli`, for environments where `everstep` is not on the path."""

from everstep.cli.main import main

main()
