"""The command `tidemark`, also as `python -m tidemark`. Where it fails beside packages that do not fit, it names these.

Nothing is imported before that is prepared: an installed package of another version often fails as it is loaded.
"""

import sys

from tidemark.services.cli.packages import advice


def main() -> None:
    """Run the command."""
    try:
        from tidemark.services.cli.__main__ import main as command  # noqa: PLC0415 - see above

        command()
    except ImportError as error:
        if not (told := advice()):
            raise
        sys.stderr.write(f"{type(error).__name__}: {error}\n{told}\n")
        sys.exit(1)
    except Exception as error:
        if told := advice():
            error.add_note(told)
        raise


if __name__ == "__main__":
    main()
