"""The command line: the library's verbs, by the same names.

Exit codes: 0 done, 1 the answer is no (does not fit, audit failed), 2 asked wrongly.
TensorFlow is imported inside the commands that need it, and only there.
"""

import os
import sys
import time
import warnings
from collections.abc import Sequence

from splitnet.core.errors import AuditError, InfeasibleError, SplitnetError

__all__ = ["main"]

DONE, NO, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code and raises none of splitnet's errors."""
    began = time.perf_counter()
    if argv is None:
        # The shell's command began when Python did, not when it had been loaded.
        began -= time.process_time()
    from splitnet.cli.parser import make_parser

    arguments = make_parser().parse_args(argv)
    arguments.began = began
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _say_warning
            return int(arguments.do(arguments))
    except (InfeasibleError, AuditError) as error:
        print(f"splitnet: {type(error).__name__}: {error}", file=sys.stderr)
        return NO
    except SplitnetError as error:
        print(f"splitnet: {type(error).__name__}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("splitnet: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, as `| head` does; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _say_warning(message: Warning | str, *_where: object) -> None:
    """Print a warning's words alone: its line of code helps nobody here."""
    print(f"splitnet: warning: {message}", file=sys.stderr)
