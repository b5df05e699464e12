"""Entry point of `python -m frazil`."""

import signal

# Ctrl-C during imports ends the process without a traceback: there is nothing to clean up yet.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from frazil.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
