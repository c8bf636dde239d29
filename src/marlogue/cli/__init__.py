"""The command line: ``python -m marlogue COMMAND``, or ``marlogue COMMAND``.

What a command needs is imported when the command is known, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from marlogue import __version__

COMMANDS = {
    "train": "train a team as a YAML file says",
    "evaluate": "measure a saved team (or an untrained one) on an environment",
    "rollout": "print what a team says on given rows",
    "chat": "type a prompt, and the team answers",
    "attention": "show who attends to whom over an episode of a run with an attention critic",
    "inspect": "compute a batch again whose step was skipped, since a number was not finite",
}

_MORE = """\
"marlogue COMMAND --help" lists what a command takes.

  marlogue train --config examples/coordination.yaml
  marlogue train --config run.yaml --args.agent_learning_rate 1e-6 --seed 3
  marlogue train --config run.yaml --print_config
  marlogue evaluate --team runs/coordination/team --eval_num_samples 100
  marlogue rollout --team runs/coordination/team --rows 0,3
  marlogue attention runs/spread --output who.png
  marlogue inspect runs/mine/bad_batches/000003_agent_1
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name; None for those of this process.

    Returns:
        The exit status: 0 when all went well, 2 for a command line or configuration that cannot
        be used, 130 when interrupted from the keyboard.

    Raises:
        SystemExit: after ``--help`` and the like.
        Exception: whatever a run or a callback raises, with its traceback (exit status 1).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="marlogue",
        description="Multi-agent reinforcement learning for teams of language models.",
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"marlogue {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, what in COMMANDS.items():
        commands.add_parser(name, help=what, add_help=False)
    # A command's own options are none of this parser's business.
    command = parser.parse_args(words[:1]).command
    if command is None:
        parser.print_help()
        return 2
    # transformers reads it when it is imported: a run that goes well has nothing to warn of.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from marlogue.cli.commands import run

    return run(command, words[1:])
