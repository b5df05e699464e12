"""`python -m frazil` is the command `frazil`, and begins here."""

import signal

# Ctrl-C while modules are being loaded ends it without a traceback: there is nothing to tidy up yet.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from frazil.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
