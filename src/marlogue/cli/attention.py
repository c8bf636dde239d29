"""``marlogue attention``: who attends to whom over an episode, in words and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marlogue.algorithms.attention_episode import episode_figure
from marlogue.algorithms.attention_figures import attention_image, figures_available, steps_of
from marlogue.algorithms.attention_trace import AttentionTrace, list_traces, partners
from marlogue.cli.errors import UsageError, WordParser, as_usage_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTNERS = 3  # of each agent, in the table
_ROWS = 40  # agents in the table
_HOW = (
    "a trainer with an attention critic leaves one with each evaluation: AACConfig("
    "critic_architecture='attention', attention_images=True, eval_interval=...) and "
    "AACTrainer(logdir=...)"
)


def attention(words: Sequence[str]) -> None:
    """Print whom each agent attends to and how widely each head spreads, and draw a picture.

    Raises:
        UsageError: when the run holds no trace, or a step is not there.
    """
    given = _parser().parse_args(words)
    path = _chosen(Path(given.run), given.step)
    with as_usage_errors():
        trace = AttentionTrace.load(path)
    figure = None
    if given.output or figures_available():
        with as_usage_errors():
            figure = _figure(trace, given.heads, given.at)
    print(path)
    print("\n".join(table(trace)))
    if figure is None:
        print('for a picture: pip install "marlogue[plot]"')
        return
    output = Path(given.output or path.with_suffix(".png"))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=given.dpi)
    except (OSError, ValueError) as error:
        raise UsageError(f"output ({output}) cannot be written: {error}") from None
    print(f"the picture is in {output}")


def table(trace: AttentionTrace) -> list[str]:
    """The lines that are printed."""
    count = len(trace.names)
    about = f"{trace.about}: " if trace.about else ""
    lines = [f"{about}{count} agents, {trace.num_heads} heads, mean over {steps_of(trace)}"]
    if trace.kept:
        lines.append(f"({trace.kept})")
    mean, uniform = trace.mean_weights(), trace.uniform()
    width = max(len("agent"), *map(len, trace.names[:_ROWS]))
    lines += ["", f"{'agent':{width}s}  attends most to (uniform: {_number(uniform)})"]
    strongest = partners(mean, _PARTNERS)
    for name, row, others in list(zip(trace.names, mean, strongest, strict=True))[:_ROWS]:
        said = ", ".join(f"{trace.names[other]} {_number(row[other])}" for other in others)
        lines.append(f"{name:{width}s}  {said or 'nobody: never in company'}")
    if count > _ROWS:
        lines.append(f"and {count - _ROWS} more")
    lines += ["", *_heads(trace)]
    return lines


def _figure(trace: AttentionTrace, heads: bool, at: Sequence[int] | None) -> Figure:
    if not heads:
        return episode_figure(trace, at)
    title = None if not trace.about else f"Who attends to whom · {trace.about}"
    return attention_image(trace, title=title)


def _heads(trace: AttentionTrace) -> list[str]:
    nats, shares = trace.entropies()
    if not nats:
        return ["no agent ever had two others to choose from: entropies say nothing"]
    lines = [f"{'head':>4s}  {'entropy':>8s}  {'of uniform':>10s}"]
    for head, (entropy, share) in enumerate(zip(nats, shares, strict=True)):
        name = "mean" if trace.heads_averaged else str(head)
        lines.append(f"{name:>4s}  {entropy:8.3f}  {share:10.1%}")
    return lines


def _chosen(run: Path, step: int | None) -> Path:
    """The file to read."""
    if run.is_file():
        return run
    if not run.exists():
        raise UsageError(f"run ({run}) must be the folder of a run; there is none")
    traces = list_traces(run)
    if not traces:
        raise UsageError(f"run ({run}) holds no attention traces; {_HOW}")
    if step is None:
        return list(traces.values())[-1]
    if step not in traces:
        raise UsageError(f"step ({step}) must be one of {', '.join(map(str, traces))}")
    return traces[step]


def _number(value: float) -> str:
    """Two digits that say something, also among a thousand agents."""
    return "unknown" if math.isnan(value) else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _steps(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"at ({text}) must be steps of the episode, as in 0,10,24") from None


def _parser() -> WordParser:
    parser = WordParser(
        prog="marlogue attention",
        description="Who attends to whom over an episode, from the traces that a trainer with an "
        "attention critic leaves in its folder.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, or one of its traces")
    parser.add_argument("--output", metavar="FILE", help="the picture; beside the trace by default")
    parser.add_argument("--step", type=int, help="of the training; the newest by default")
    parser.add_argument(
        "--at", type=_steps, metavar="STEPS", help="steps of the episode to show, as in 0,10,24"
    )
    parser.add_argument(
        "--heads", action="store_true", help="the mean over the episode, head by head, instead"
    )
    parser.add_argument("--dpi", type=int, default=120, help="dots per inch of the picture")
    return parser
