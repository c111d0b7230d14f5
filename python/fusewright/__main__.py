"""`python -m fusewright` and the script `fusewright`."""

import sys


def main() -> None:
    try:
        from fusewright.commands import process  # not above: an interrupt of this import has an answer too

        process.run()
    except KeyboardInterrupt:
        print("fusewright: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
