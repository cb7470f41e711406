"""`python -m tidemark` is the command `tidemark`, for an environment whose scripts are on no path."""

from tidemark.services.cli.__main__ import main

if __name__ == "__main__":
    main()
